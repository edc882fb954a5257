"""How long a cell takes: from the config, and from what was measured already."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from speedmatrix.cells import Capacity, Cell, plan
from speedmatrix.config import Measure

OVERHEAD_S = 1.5  # a job's process, prompts, idle checks
DEFAULT_PREFILL_TOK_S = 5000.0  # until a prefill cell of the server was measured


@dataclass(frozen=True)
class Speeds:
    """What is known of one server so far: prefill tok/s by context, and its capacity."""

    prefill: dict[int, float]
    capacity: Capacity

    def prefill_s(self, context: int) -> float:
        """Seconds to process a prompt of `context` tokens, by the nearest measured context."""
        if not self.prefill:
            return context / DEFAULT_PREFILL_TOK_S
        nearest = min(self.prefill, key=lambda known: abs(known - context))
        return context / self.prefill[nearest]


def speeds(results: Iterable[dict[str, Any]], capacity: Capacity) -> Speeds:
    """From cell JSONs (any phase; those without a figure tell nothing) and the server's capacity as far as known."""
    measured = (r for r in results if r["phase"] == "prefill" and r["figures"])
    prefill = {r["context_tokens"]: r["figures"]["total_tok_s"] for r in measured if r["figures"]["total_tok_s"]}
    return Speeds(prefill, capacity)


def cell_s(cell: Cell, measure: Measure, known: Speeds) -> float:
    """Seconds that `cell` will take; one that does not fit the server takes only its process."""
    shared = measure.prompts == "shared"
    if plan(cell, measure.max_output_tokens, known.capacity, shared).status is not None:
        return OVERHEAD_S
    once = known.prefill_s(cell.context)
    if cell.phase == "prefill":
        return OVERHEAD_S + (measure.prefill_repeats + 1) * once
    prompts = 1 if shared else cell.concurrency
    return OVERHEAD_S + prompts * once + measure.settle_s + measure.duration_s


def duration_text(seconds: float) -> str:
    """`95` → `1 min 35 s`; hours and minutes from an hour on."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
