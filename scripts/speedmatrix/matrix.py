"""A server's cells as the reader sees them: contexts × concurrency, the repeats of a cell as one place."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from speedmatrix import cost, validity

RECONCILED = 0.1
# What a cell's telemetry says of its window, as far as it is shown.
TELEMETRY = [
    *("energy_j", "tok_per_j", "power_avg_w", "power_max_w", "gpu_temp_max_c", "gpu_util_avg_pct", "sm_clock_avg_mhz"),
    *("gpu_memory_max_bytes", "cpu_load_avg_pct", "server_memory_max_bytes", "throttle"),
]
# From what can be relied on to what has no figure: a place is called after the last that applies.
STATUSES = ("valid", "flagged", "limited", "over_capacity", "over_context", "failed")


def status_of(cell: dict[str, Any]) -> str:
    """The cell's status as readers are told it: a valid cell with flags is flagged."""
    return "flagged" if cell["status"] == "valid" and cell["flags"] else str(cell["status"])


def figures_of(cell: dict[str, Any], price_per_hour: float | None = None) -> dict[str, Any]:
    """All that is known of a cell by name: its figures, what its telemetry says of the window, its tokens' price."""
    telemetry = cell.get("telemetry") or {}
    sampled = {name: telemetry.get(name) for name in TELEMETRY}
    priced = {"price_per_mtok": cost.price_per_mtok(price_per_hour, cell)}
    return {**cell["figures"], **sampled, **priced} if cell["figures"] else {}


@dataclass(frozen=True, eq=False)
class Place:
    """The cells of one phase, context and concurrency: one, or one each repeat."""

    cells: tuple[dict[str, Any], ...]
    price_per_hour: float | None = None

    @property
    def server(self) -> str:
        return str(self.cells[0]["server"])

    @property
    def phase(self) -> str:
        return str(self.cells[0]["phase"])

    @property
    def context(self) -> int:
        """Nominal context in tokens."""
        return int(self.cells[0]["context_tokens"])

    @property
    def concurrency(self) -> int:
        return int(self.cells[0]["concurrency"])

    @cached_property
    def measured(self) -> tuple[dict[str, Any], ...]:
        """The cells that have figures."""
        return tuple(cell for cell in self.cells if cell["figures"])

    @property
    def shown(self) -> dict[str, Any]:
        """The cell whose status and words stand for the place."""
        return max(self.measured or self.cells, key=lambda cell: STATUSES.index(status_of(cell)))

    @property
    def status(self) -> str:
        return status_of(self.shown)

    @property
    def flags(self) -> list[str]:
        """All that its measured cells carry, each once."""
        return list(dict.fromkeys(flag for cell in self.measured for flag in cell["flags"]))

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Each figure's median over the measured repeats; a word if all say it, else `mixed`. Empty: not measured."""
        told = [figures_of(cell, self.price_per_hour) for cell in self.measured]
        names = dict.fromkeys(name for figures in told for name in figures)
        return {name: _middle([figures.get(name) for figures in told]) for name in names}

    @property
    def sound(self) -> bool:
        """Whether it may be a peak, a knee or a passed limit: all its requests ran, and no flag is against that."""
        return bool(self.measured) and self.status != "limited" and not validity.NEVER_BEST & set(self.flags)

    @property
    def spread(self) -> float:
        """How far its repeats lie apart: (highest - lowest) / median of their totals; 0 for a single one."""
        totals = [cell["figures"]["total_tok_s"] for cell in self.measured if cell["figures"].get("total_tok_s")]
        return (max(totals) - min(totals)) / statistics.median(totals) if len(totals) > 1 else 0.0

    @property
    def reconciles(self) -> bool:
        """Whether per-request speed × requests at work makes the total, within RECONCILED."""
        each, total, active = (self.get(name) for name in ("request_tok_s", "total_tok_s", "active_avg"))
        if not each or not total:
            return True
        return abs((active or self.concurrency) * each / total - 1) <= RECONCILED

    def get(self, figure: str) -> float | None:
        """The figure, None where there is none."""
        value: float | None = self.figures.get(figure)
        return value


def _middle(values: list[Any]) -> Any:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return known[0] if known else None
    if isinstance(known[0], str):
        return known[0] if len(set(known)) == 1 else "mixed"
    return statistics.median(known)


@dataclass(frozen=True)
class Results:
    """All that is known of one server: health.json, and its places in order."""

    name: str
    health: dict[str, Any]
    prefill: tuple[Place, ...] = ()
    decode: tuple[Place, ...] = ()
    slo: dict[str, float] = field(default_factory=dict)  # the latencies that the config asks for: ttft_ms, itl_ms

    @property
    def contexts(self) -> list[int]:
        """The decode matrix's rows."""
        return sorted({place.context for place in self.decode})

    @property
    def concurrency(self) -> list[int]:
        """The decode matrix's columns."""
        return sorted({place.concurrency for place in self.decode})

    @property
    def places(self) -> tuple[Place, ...]:
        return self.prefill + self.decode

    @property
    def cells(self) -> list[dict[str, Any]]:
        return [cell for place in self.places for cell in place.cells]

    def at(self, context: int, concurrency: int) -> Place | None:
        """The decode place there; None where the config asks for none."""
        return self._decode_at.get((context, concurrency))

    @cached_property
    def _decode_at(self) -> dict[tuple[int, int], Place]:
        return {(place.context, place.concurrency): place for place in self.decode}

    def row(self, context: int) -> list[Place]:
        """The sound decode places of a context, in order of concurrency."""
        return [place for place in self.decode if place.context == context and place.sound]

    @property
    def alone(self) -> list[Place]:
        """The sound decode places of one request."""
        return [place for place in self.decode if place.concurrency == 1 and place.sound]


def results(
    name: str,
    health: dict[str, Any],
    cells: list[dict[str, Any]],
    slo: dict[str, float],
    price_per_hour: float | None = None,
) -> Results:
    """The server's results from its cells, in any order."""
    places: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for cell in cells:
        if cell["server"] == name:
            places.setdefault((cell["phase"], cell["context_tokens"], cell["concurrency"]), []).append(cell)
    phases: dict[str, list[Place]] = {"prefill": [], "decode": []}
    for phase, context, concurrency in sorted(places):
        phases[phase].append(Place(tuple(places[phase, context, concurrency]), price_per_hour))
    return Results(name, health, tuple(phases["prefill"]), tuple(phases["decode"]), slo)
