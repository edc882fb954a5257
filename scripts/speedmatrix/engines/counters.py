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
        """By how much each count rose; None where either does not tell, or where it fell: another server counts then.

        Gauges have no rise.
        """
        return Counters(**{name: self._rise(name, before) for name in vars(self) if name not in ("running", "waiting")})

    def _rise(self, name: str, before: Counters) -> float | None:
        first, last = getattr(before, name), getattr(self, name)
        return None if first is None or last is None or last < first else last - first
