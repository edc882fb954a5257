"""What a cell saw: its streams with every arrival, kept beside the cell so that each figure can be computed again."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SECOND = 1_000_000_000
_ABSENT = -1


@dataclass
class Stream:
    """One streaming request. Times in ns of one monotonic clock; at `t_ns[i]`, `tokens[i]` tokens arrived.

    `source`: how tokens were counted (`usage`, `reconciled`, `events`); `prompt_ms`: the server's own prefill time.
    `texts[i]` is what arrived at `t_ns[i]`, where it is kept (not on disk).
    """

    lane: int
    index: int
    started_ns: int = 0
    t_ns: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    ended_ns: int | None = None
    finish: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    prompt_ms: float | None = None
    final_tokens: int | None = None
    source: str = "events"
    texts: list[str] | None = None


@dataclass
class Run:
    """What a cell's load left: all streams, the window's edges, how late the measuring process was.

    `lags_ns`: of the event loop in the window; `ramp_lag_ns`: its worst before, which TTFT may hold.
    `cpu_share`: of one core that it used or waited for. `ran`: how many lanes the server ran at once where that was
    fewer than asked for, else None.
    """

    streams: list[Stream]
    t0_ns: int = 0
    t1_ns: int = 0
    lags_ns: list[int] = field(default_factory=list)
    ramp_lag_ns: int = 0
    cpu_share: float | None = None
    ran: int | None = None


_COUNTS = ("lane", "index", "started_ns", "ended_ns", "prompt_tokens", "cached_tokens", "final_tokens")
_TEXTS = ("finish", "source")


def save(run: Run, path: Path) -> None:
    """Write `run` as npz, whole or not at all: a table of streams and, per arrival, stream, t_ns and tokens."""
    streams = run.streams
    columns = {f"stream_{name}": np.array([_or(getattr(s, name)) for s in streams], np.int64) for name in _COUNTS}
    columns |= {f"stream_{name}": np.array([getattr(s, name) or "" for s in streams], "U16") for name in _TEXTS}
    prompt_ms = [np.nan if s.prompt_ms is None else s.prompt_ms for s in streams]
    lengths = [len(s.t_ns) for s in streams]
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        np.savez_compressed(
            file,
            allow_pickle=False,
            window_ns=np.array([run.t0_ns, run.t1_ns], np.int64),
            stream_prompt_ms=np.array(prompt_ms, np.float64),
            stream=np.repeat(np.arange(len(streams), dtype=np.int32), lengths),
            t_ns=np.array([t for s in streams for t in s.t_ns], np.int64),
            tokens=np.array([n for s in streams for n in s.tokens], np.int32),
            **columns,
        )
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def load(path: Path) -> Run:
    """Read back what `save` wrote; lags and CPU share are not kept. Raises OSError, KeyError or ValueError."""
    with np.load(path, allow_pickle=False) as kept:
        data = {name: kept[name] for name in kept.files}
    streams = [_stream(data, i) for i in range(len(data["stream_lane"]))]
    cuts = np.searchsorted(data["stream"], np.arange(len(streams) + 1))
    for stream, start, end in zip(streams, cuts[:-1], cuts[1:], strict=True):
        stream.t_ns = data["t_ns"][start:end].tolist()
        stream.tokens = data["tokens"][start:end].tolist()
    t0, t1 = data["window_ns"].tolist()
    return Run(streams, t0, t1)


def _stream(data: dict[str, np.ndarray], i: int) -> Stream:
    counts = {name: int(data[f"stream_{name}"][i]) for name in _COUNTS}
    known = {name: None if value == _ABSENT else value for name, value in counts.items()}
    texts = {name: str(data[f"stream_{name}"][i]) or None for name in _TEXTS}
    prompt_ms = float(data["stream_prompt_ms"][i])
    return Stream(**known, **texts, prompt_ms=None if np.isnan(prompt_ms) else prompt_ms)  # type: ignore[arg-type]


def _or(value: int | None) -> int:
    return _ABSENT if value is None else value
