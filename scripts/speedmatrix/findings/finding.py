"""What a finding is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from speedmatrix.cells import size_name
from speedmatrix.formats import listed
from speedmatrix.matrix import Place

Level = Literal["problem", "warning", "note", "good"]
LEVELS: tuple[Level, ...] = ("problem", "warning", "note", "good")


@dataclass(frozen=True)
class Finding:
    """`claim` is one sentence with its own numbers; `meaning` what follows from it; `advice` what to try next.

    Good news has no need of the last two. `places` are those that it is about.
    """

    level: Level
    claim: str
    meaning: str = ""
    advice: str = ""
    places: tuple[Place, ...] = ()


Found = Iterator[Finding]


def name_of(place: Place) -> str:
    """`8K × 16`; of a prefill place `prefill 8K`."""
    context = size_name(place.context)
    return f"prefill {context}" if place.phase == "prefill" else f"{context} × {place.concurrency}"


def contexts_of(places: list[Place]) -> str:
    """`8K, 16K and 32K`."""
    return listed(dict.fromkeys(size_name(place.context) for place in places))
