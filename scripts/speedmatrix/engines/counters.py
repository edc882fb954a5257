"""What a server counts for itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Counters:
    """The server's own gauges (requests running, waiting) and running counts at one moment; None: it does not tell.

    `drafts` and `accepted`: speculative steps and the drafted tokens they kept; `prefill_s` over `prefills` requests.
    """

    running: float | None = None
    waiting: float | None = None
    generated: float | None = None
    prefix_hits: float | None = None
    preemptions: float | None = None
    drafts: float | None = None
    accepted: float | None = None
    prefill_s: float | None = None
    prefills: float | None = None

    def told(self, t_s: float) -> dict[str, float]:
        """What the server told at `t_s`, by name: for keeping."""
        return {"t_s": t_s} | {name: value for name, value in vars(self).items() if value is not None}
