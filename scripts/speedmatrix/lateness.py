"""By how much the measuring process itself is late: what delays its event loop delays every arrival that it notes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

LIMIT_NS = 1_000_000_000  # a measuring process that was stopped or late by more than this measured nothing
BEAT_S = 0.01
_BEAT_NS = round(BEAT_S * 1e9)


class Beat:
    """Comes round every BEAT_S and notes in `lags_ns` by how much it was late."""

    def __init__(self, clock: Callable[[], int], lags_ns: list[int]) -> None:
        self._clock, self._lags_ns, self._before_ns = clock, lags_ns, clock()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._before_ns = self._clock()
            await asyncio.sleep(BEAT_S)
            self.note()

    def note(self) -> None:
        """Note how late it is now; at the end, too: who was stopped right before has not come round to say so."""
        self._lags_ns.append(max(0, self._clock() - self._before_ns - _BEAT_NS))


def refusal(lags_ns: list[int]) -> str | None:
    """Why nothing counts that was measured by a process as late as this; None where it was not."""
    worst = max(lags_ns, default=0)
    if worst <= LIMIT_NS:
        return None
    late = f"the measuring process was stopped or late by {worst / 1e9:.1f} s"
    return f"{late}: measure again, from a machine that has a core for it"


def cpu_wait_ns() -> int:
    """How long this process's main thread has waited for a core although it could run; 0 where that is not told."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
