"""A cell's figures from all that is kept of it: its arrivals and the server's own counts. Pure."""

from __future__ import annotations

from typing import Any

from speedmatrix import metrics
from speedmatrix.arrivals import Run

Reading = dict[str, float]
BY_SERVER = ("server_tok_s", "server_active_avg", "acceptance_length", "server_diff_pct")


def decode(run: Run) -> dict[str, Any]:
    """All figures of a decode cell; keys as the columns of measurements.csv. Absent is None."""
    before, first, last, after = run.readings or [{}, {}, {}, {}]
    figures = metrics.decode(run) | by_server(first, last)
    figures["server_diff_pct"] = _difference_pct(figures["server_tok_s"], figures["total_tok_s"])
    return figures | _cached_by_engine(figures, rise(before, after, "prefix_hits"), run.prompted)


def prefill(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """(figures, details) of a prefill cell."""
    figures, details = metrics.prefill(run.streams)
    before, after = run.readings or [{}, {}]
    seconds, requests = rise(before, after, "prefill_s"), rise(before, after, "prefills")
    if details["server_prefill_ms"] is None and seconds is not None and requests:
        details["server_prefill_ms"] = 1000 * seconds / requests  # the discarded request's too
    return figures | _cached_by_engine(figures, rise(before, after, "prefix_hits"), run.prompted), details


def by_server(first: Reading, last: Reading) -> dict[str, Any]:
    """What the server's own counters say, read at the window's edges.

    `server_tok_s`: the count's rise over the time between the readings; `server_active_avg`: of its gauge;
    `acceptance_length`: tokens a step of speculative decoding, the one that is always right included.
    """
    generated, drafts, accepted = (rise(first, last, name) for name in ("generated", "drafts", "accepted"))
    gauges = [reading["running"] for reading in (first, last) if "running" in reading]
    return {
        "server_tok_s": None if generated is None else generated / (last["t_s"] - first["t_s"]),
        "server_active_avg": sum(gauges) / len(gauges) if gauges else None,
        "acceptance_length": 1 + accepted / drafts if drafts and accepted is not None else None,
    }


def rise(before: Reading, after: Reading, name: str) -> float | None:
    """By how much a count rose; None where it is not told, or where it fell: another server counts then."""
    first, last = before.get(name), after.get(name)
    return None if first is None or last is None or last < first else last - first


def _cached_by_engine(figures: dict[str, Any], hits: float | None, prompted: int) -> dict[str, Any]:
    """Cached share and TTFT kind by the engine's counters, where the streams' usage is silent about it."""
    if figures["cached_share"] is not None or hits is None or not prompted:
        return {}
    share = min(1.0, max(0.0, hits / prompted))
    return {"cached_share": share, "ttft_kind": metrics.ttft_kind(share)}


def _difference_pct(server: float | None, ours: float | None) -> float | None:
    return None if server is None or not ours else (server - ours) / ours * 100
