"""What a cell saw: its streams with every arrival, kept beside the cell so that each figure can be computed again."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
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
    fewer than asked for, else None. `readings`: the server's own counters by name, with `t_s` as they were read: before
    the load, at the window's edges, after it; None in a file of a version that did not keep them. `prompted`: prompt
    tokens of all requests that the counters saw.
    """

    streams: list[Stream]
    t0_ns: int = 0
    t1_ns: int = 0
    lags_ns: list[int] = field(default_factory=list)
    ramp_lag_ns: int = 0
    cpu_share: float | None = None
    ran: int | None = None
    readings: list[dict[str, float]] | None = None
    prompted: int = 0


_COUNTS = ("lane", "index", "started_ns", "ended_ns", "prompt_tokens", "cached_tokens", "final_tokens")
_TEXTS = ("finish", "source")
_ABOUT = ("ramp_lag_ns", "cpu_share", "ran", "readings", "prompted")
_MOST_BYTES = 4 * 2**30  # unpacked: 64 lanes of 100 tok/s fill this in 16 days, a hostile file in a moment


def save(run: Run, path: Path) -> None:
    """Write `run` as npz, whole or not at all: a table of streams and, per arrival, stream, t_ns and tokens."""
    streams = run.streams
    columns = {f"stream_{name}": np.array([_or(getattr(s, name)) for s in streams], np.int64) for name in _COUNTS}
    columns |= {f"stream_{name}": np.array([getattr(s, name) or "" for s in streams], "U16") for name in _TEXTS}
    prompt_ms = [np.nan if s.prompt_ms is None else s.prompt_ms for s in streams]
    lengths = [len(s.t_ns) for s in streams]
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez_compressed(
                file,
                allow_pickle=False,
                window_ns=np.array([run.t0_ns, run.t1_ns], np.int64),
                lags_ns=np.array(run.lags_ns, np.int64),
                about=np.array(json.dumps({name: getattr(run, name) for name in _ABOUT})),
                stream_prompt_ms=np.array(prompt_ms, np.float64),
                stream=np.repeat(np.arange(len(streams), dtype=np.int32), lengths),
                t_ns=np.array([t for s in streams for t in s.t_ns], np.int64),
                tokens=np.array([n for s in streams for n in s.tokens], np.int32),
                **columns,
            )
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path) -> Run:
    """Read back what `save` wrote. ValueError or OSError where the file is damaged or something else."""
    try:
        data = _arrays(path)
        streams = [_stream(data, i) for i in range(len(data["stream_lane"]))]
        cuts = np.searchsorted(data["stream"], np.arange(len(streams) + 1))
        for stream, start, end in zip(streams, cuts[:-1], cuts[1:], strict=True):
            stream.t_ns = data["t_ns"][start:end].tolist()
            stream.tokens = data["tokens"][start:end].tolist()
        t0, t1 = data["window_ns"].tolist()
        lags, about = (data["lags_ns"].tolist(), json.loads(str(data["about"]))) if "about" in data else ([], {})
        return Run(streams, t0, t1, lags, **{name: about[name] for name in _ABOUT if name in about})
    except (zipfile.BadZipFile, zlib.error, EOFError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"no arrivals: {error!r}") from error


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES:
            raise ValueError(f"unpacks to more than {_MOST_BYTES // 2**30} GiB")
    with np.load(path, allow_pickle=False) as kept:
        return {name: kept[name] for name in kept.files}


def _stream(data: dict[str, np.ndarray], i: int) -> Stream:
    counts = {name: int(data[f"stream_{name}"][i]) for name in _COUNTS}
    known = {name: None if value == _ABSENT else value for name, value in counts.items()}
    texts = {name: str(data[f"stream_{name}"][i]) or None for name in _TEXTS}
    prompt_ms = float(data["stream_prompt_ms"][i])
    return Stream(**known, **texts, prompt_ms=None if np.isnan(prompt_ms) else prompt_ms)  # type: ignore[arg-type]


def _or(value: int | None) -> int:
    return _ABSENT if value is None else value
