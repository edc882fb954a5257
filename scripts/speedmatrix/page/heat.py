"""The decode matrix's measures, and how deep a cell's colour is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from speedmatrix import formats
from speedmatrix.matrix import Place, Results


@dataclass(frozen=True)
class Measure:
    """One thing that the matrix can show: `deep` says what the deeper colour means."""

    key: str
    label: str
    figure: str
    form: Callable[[float | None], str]
    unit: str
    deep: str


MEASURES = [
    Measure("total", "Total tok/s", "total_tok_s", formats.speed, "tok/s", "faster"),
    Measure("request", "Per request tok/s", "request_tok_s", formats.speed, "tok/s each", "faster"),
    Measure("ttft", "TTFT", "ttft_ms", formats.ms, "to the first token", "longer"),
    Measure("itl", "Time between tokens", "itl_ms", formats.fine_ms, "between tokens", "longer"),
    Measure("energy", "Tokens per joule", "tok_per_j", formats.small, "tokens per joule", "more for the energy"),
]


def measures(results: Results) -> list[Measure]:
    """Those that any decode cell of the server has a figure of."""
    return [one for one in MEASURES if _values(results, one.figure)]


def _values(results: Results, figure: str) -> list[float]:
    return [value for place in results.decode if (value := place.get(figure))]


def scale(results: Results, measure: Measure) -> tuple[float, float]:
    """The lowest and highest value in the matrix: the ends of its logarithmic colour scale."""
    values = _values(results, measure.figure)
    return min(values), max(values)


def style(results: Results, place: Place) -> str:
    """The place's depths as CSS variables: `--total:0.71;…`; a figure it lacks has none."""
    depths = {one.key: depth(place.get(one.figure), *scale(results, one)) for one in measures(results)}
    return ";".join(f"--{key}:{value:.2f}" for key, value in depths.items() if value is not None)


def depth(value: float | None, low: float, high: float) -> float | None:
    """0 at the lowest value to 1 at the highest, on a log scale; in the middle if all are alike."""
    if not value:
        return None
    return 0.5 if high <= low else math.log(value / low) / math.log(high / low)
