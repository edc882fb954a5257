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

    def since(self, before: Counters) -> Counters:
        """By how much each rose; None where either does not tell."""
        pairs = {name: (getattr(before, name), value) for name, value in vars(self).items()}
        return Counters(**{name: None if None in pair else pair[1] - pair[0] for name, pair in pairs.items()})
