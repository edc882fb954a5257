"""Programmed speeds, and those of a published table."""

from __future__ import annotations

import bisect
import csv
import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Speeds:
    """Programmed speeds: prefill seconds by context, step seconds by (context, batch); all divided by `speedup`."""

    prefill_s: dict[int, float]
    step_s: dict[int, dict[int, float]]
    speedup: float = 1.0

    def chunk(self, context: int, tokens: int) -> float:
        """Seconds to prefill `tokens` tokens of a prompt of `context`: its share of the whole prompt's time."""
        known = sorted(self.prefill_s)
        nearest = min(known, key=lambda other: abs(math.log(other / context)))
        return self.prefill_s[nearest] / nearest * tokens / self.speedup

    def step(self, context: int, batch: int) -> float:
        """Seconds of a decode step: exact where the table has it, linear in between, the edge's beyond."""
        rows = self.step_s[min(self.step_s, key=lambda other: abs(math.log(other / context)))]
        sizes = sorted(rows)
        if batch in rows:
            seconds = rows[batch]
        elif batch > sizes[-1]:
            seconds = rows[sizes[-1]] * batch / sizes[-1]
        else:
            above = bisect.bisect(sizes, batch)
            low, high = sizes[max(0, above - 1)], sizes[above]
            share = (batch - low) / (high - low) if high != low else 0
            seconds = rows[low] + share * (rows[high] - rows[low])
        return seconds / self.speedup


def _tokens(text: str) -> int:
    return int(text[:-1]) * 1024 if text.endswith("K") else int(text)


def _number(text: str) -> float:
    plain = text.replace(",", "").removesuffix(" ms")
    return float(plain[:-1]) * 1000 if plain.endswith("K") else float(plain)


def from_table(path: Path, speedup: float) -> Speeds:
    """Speeds of a published table: prefill seconds = its TTFT, step seconds = concurrency / total tok/s."""
    prefill: dict[int, float] = {}
    steps: dict[int, dict[int, float]] = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            context, lanes = _tokens(row["context"]), int(row["requests_at_once"])
            if row["phase"] == "Prefill":
                prefill[context] = _number(row["ttft"]) / 1000
            elif row["total_tok_s"]:
                steps.setdefault(context, {})[lanes] = lanes / _number(row["total_tok_s"])
    return Speeds(prefill, steps, speedup)
