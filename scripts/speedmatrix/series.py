"""One quantity of one device over time: what it was in a window, or why that can't be known. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from speedmatrix.readings import SECOND

MIN_SAMPLES = 3  # inside the window: fewer tell nothing of it
MAX_GAP = 0.2  # between two samples, as a part of the window; a second is always allowed


class Absent(Exception):
    """A figure can't be known; the message is the reason."""


@dataclass(frozen=True)
class Window:
    """The measured time [t0, t1) in ns, and the tokens in it: generated ones of decode, prompts' of prefill."""

    t0_ns: int
    t1_ns: int
    tokens: float | None

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.t1_ns - self.t0_ns) / SECOND


@dataclass(frozen=True)
class Series:
    """One quantity of one device: times in ns, values, and what is said where there are none."""

    name: str
    t_ns: np.ndarray
    values: np.ndarray
    why: str

    def inside(self, window: Window) -> np.ndarray:
        """The values inside the window. Raises Absent where there is none."""
        within = self.values[(self.t_ns >= window.t0_ns) & (self.t_ns < window.t1_ns)]
        if not len(within):
            raise Absent(self.why if not len(self.values) else f"{self.name} was not read in the window")
        return within

    def covering(self, window: Window) -> Series:
        """Itself, if its samples reach over the window without a hole. Raises Absent otherwise."""
        if not len(self.values):
            raise Absent(self.why)
        samples, first, last = len(self.inside(window)), self.t_ns[0], self.t_ns[-1]
        if samples < MIN_SAMPLES:
            raise Absent(f"the window of {window.seconds:.2f} s holds only {samples} samples")
        if first > window.t0_ns:
            raise Absent(f"sampling began {(first - window.t0_ns) / SECOND:.1f} s after the window")
        if last < window.t1_ns:
            said = f"{self.name} was not read any more from {(last - window.t0_ns) / SECOND:.1f} s of the window on"
            raise Absent(f"{said} ({self.why})" if self.why else said)
        beside = self.t_ns[max(0, np.searchsorted(self.t_ns, window.t0_ns, "right") - 1) :]
        beside = beside[: np.searchsorted(beside, window.t1_ns) + 1]
        gap_s = float(np.diff(beside).max()) / SECOND
        if gap_s > max(1.0, MAX_GAP * window.seconds):
            raise Absent(f"{self.name} was not read for {gap_s:.1f} s of the window")
        return self

    def at(self, t_ns: np.ndarray | list[int]) -> np.ndarray:
        """The values at these times, linear between samples."""
        return np.asarray(np.interp(t_ns, self.t_ns, self.values))

    def integral(self, window: Window) -> float:
        """∫ value dt over the window in value · s: trapezoids, the edges' values interpolated."""
        within = (self.t_ns > window.t0_ns) & (self.t_ns < window.t1_ns)
        start, end = self.at([window.t0_ns, window.t1_ns])
        t_s = (np.array([window.t0_ns, *self.t_ns[within], window.t1_ns]) - window.t0_ns) / SECOND
        return float(np.trapezoid([start, *self.values[within], end], t_s))

    def steepest(self, window: Window) -> float:
        """A counter's fastest rise between two samples in the window, per second. Raises Absent."""
        own = self.covering(window)
        within = (own.t_ns >= window.t0_ns) & (own.t_ns < window.t1_ns)
        return float((np.diff(own.values[within]) / (np.diff(own.t_ns[within]) / SECOND)).max())

    def rise(self, window: Window) -> float:
        """How much a counter rose from the window's start to its end, both interpolated."""
        start, end = self.at([window.t0_ns, window.t1_ns])
        return float(end - start)
