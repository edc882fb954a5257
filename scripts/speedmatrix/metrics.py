"""Arrivals → figures. Pure functions of times in ns; every formula stands in its docstring (METHOD's table)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speedmatrix.arrivals import SECOND, Run, Stream

# The figures that are absent where events were held back on their way.
LATENCIES = ("ttft_ms", "ttft_p90_ms", "ttft_p99_ms", "ttft_in_window_ms", "itl_ms", "itl_p90_ms", "itl_p99_ms")
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """One stream's arrivals: `t_ns` [n] rising times, `tokens` [n] tokens each (weighted where reconciled).

    Events that were read at the same instant are one arrival: their tokens came in the gap before it, all together.
    """

    lane: int
    started_ns: int
    t_ns: Ints
    tokens: Floats
    finish: str | None
    ended_ns: int | None


def trace(stream: Stream) -> Trace:
    """The stream's arrivals as arrays. Events counted one token each are scaled to the final usage, where told."""
    tokens = np.asarray(stream.tokens, dtype=np.float64)
    if stream.source == "reconciled" and stream.final_tokens and tokens.sum():
        tokens = tokens * (stream.final_tokens / tokens.sum())
    t_ns = np.asarray(stream.t_ns, dtype=np.int64)
    firsts = np.flatnonzero(np.diff(t_ns, prepend=t_ns[0] - 1)) if len(t_ns) else t_ns
    if len(firsts) < len(t_ns):
        t_ns, tokens = t_ns[firsts], np.add.reduceat(tokens, firsts)
    return Trace(stream.lane, stream.started_ns, t_ns, tokens, stream.finish, stream.ended_ns)


def tokens_in(one: Trace, t0: float, t1: float) -> tuple[float, float]:
    """(spread, first): tokens of the stream inside [t0, t1).

    An event's tokens are spread evenly over the gap since the stream's previous arrival, and the part inside
    counts. The first arrival has no gap before it: its tokens are a point, counted apart.
    """
    if not len(one.t_ns):
        return 0.0, 0.0
    inside = np.minimum(one.t_ns[1:], t1) - np.maximum(one.t_ns[:-1], t0)
    share = np.clip(inside, 0, None) / np.diff(one.t_ns)
    first = float(one.tokens[0]) if t0 <= one.t_ns[0] < t1 else 0.0
    return float(share @ one.tokens[1:]), first


def decoding_s(one: Trace, t0: float, t1: float) -> float:
    """Seconds inside [t0, t1) between the stream's first and last arrival."""
    if not len(one.t_ns):
        return 0.0
    return max(0.0, min(float(one.t_ns[-1]), t1) - max(float(one.t_ns[0]), t0)) / SECOND


def output_tokens(traces: list[Trace], t0: float, t1: float) -> float:
    """Σ over all events of the part inside the window [t0, t1)."""
    return sum(sum(tokens_in(one, t0, t1)) for one in traces)


def lane_rates(traces: list[Trace], t0: float, t1: float) -> list[float]:
    """tok/s of each lane while it decodes: its spread tokens in the window / its seconds decoding in the window.

    Ramp-up and the gap before a restarted stream's first token never enter. Lanes that never decode are left out.
    """
    tokens: dict[int, float] = {}
    seconds: dict[int, float] = {}
    for one in traces:
        tokens[one.lane] = tokens.get(one.lane, 0.0) + tokens_in(one, t0, t1)[0]
        seconds[one.lane] = seconds.get(one.lane, 0.0) + decoding_s(one, t0, t1)
    return [tokens[lane] / seconds[lane] for lane in tokens if seconds[lane] > 0 and tokens[lane] > 0]


def most_at_once(traces: list[Trace], t1: float) -> int:
    """The most streams that decoded (between first and last arrival) at one time before t1."""
    edges = [(float(one.t_ns[0]), 1) for one in traces if len(one.t_ns) and one.t_ns[0] < t1]
    edges += [(float(one.t_ns[-1]), -1) for one in traces if len(one.t_ns)]
    inside = most = 0
    for _, change in sorted(edges, key=lambda edge: (edge[0], -edge[1])):
        inside += change
        most = max(most, inside)
    return most


def gaps_ms(traces: list[Trace], t0: float, t1: float) -> Floats:
    """Single gaps between arrivals that end inside the window, in ms: what a reader sees."""
    gaps = [np.diff(one.t_ns)[(one.t_ns[1:] >= t0) & (one.t_ns[1:] < t1)] for one in traces if len(one.t_ns) > 1]
    return np.concatenate(gaps) / 1e6 if gaps else np.empty(0)


def ttft_ms(streams: list[Stream]) -> list[float]:
    """Time to first token of each stream that had one, in ms."""
    return [(stream.t_ns[0] - stream.started_ns) / 1e6 for stream in streams if stream.t_ns]


def ttft_kind(cached_share: float | None) -> str:
    """cold (≤ 1 % of the prompt cached), warm (≥ 99 %), mixed, or unknown."""
    if cached_share is None:
        return "unknown"
    return "cold" if cached_share <= 0.01 else "warm" if cached_share >= 0.99 else "mixed"


def cached_share(streams: list[Stream]) -> float | None:
    """Cached / prompt tokens over all streams; None where any does not tell, or tells more than its prompt had."""
    known = [(one.cached_tokens, one.prompt_tokens) for one in streams if one.t_ns]
    pairs = [(cached, prompt) for cached, prompt in known if cached is not None and prompt and cached <= prompt]
    if not pairs or len(pairs) < len(known):
        return None
    return sum(cached for cached, _ in pairs) / sum(prompt for _, prompt in pairs)


def median(values: list[float]) -> float | None:
    """The median, or None of nothing."""
    return float(np.median(values)) if values else None


def percentile(values: list[float] | Floats, q: float) -> float | None:
    """The q-th percentile, linearly interpolated, or None of nothing."""
    return float(np.percentile(values, q)) if len(values) else None


def decode(run: Run) -> dict[str, Any]:
    """The figures of a decode cell's window; keys as the columns of measurements.csv. Absent is None."""
    traces = [trace(stream) for stream in run.streams]
    t0, t1 = float(run.t0_ns), float(run.t1_ns)
    seconds = (t1 - t0) / SECOND
    tokens = output_tokens(traces, t0, t1)
    rates = lane_rates(traces, t0, t1)
    itl = median([1000 / rate for rate in rates])
    gaps = gaps_ms(traces, t0, t1)
    return {
        "total_tok_s": tokens / seconds,
        "request_tok_s": median(rates),
        "itl_ms": itl,
        "itl_p90_ms": percentile(gaps, 90),
        "itl_p99_ms": percentile(gaps, 99),
        **_ttft_figures(run),
        "active_avg": sum(decoding_s(one, t0, t1) for one in traces) / seconds,
        "completed": sum(_ended_inside(one, t0, t1) for one in traces),
        "restarts": sum(t0 <= one.started_ns < t1 for one in traces if one.started_ns),
        "output_tokens": tokens,
        "measured_s": seconds,
        "token_source": token_source(run.streams),
    }


def _ended_inside(one: Trace, t0: float, t1: float) -> bool:
    """Whether the stream ended by length or stop, its last token inside the window."""
    return one.finish is not None and len(one.t_ns) > 0 and bool(t0 <= one.t_ns[-1] < t1)


def _ttft_figures(run: Run) -> dict[str, Any]:
    first = _first_of_each_lane(run.streams)
    if run.ran is not None:  # the others' includes waiting for these to end
        first = sorted((one for one in first if one.t_ns), key=lambda one: one.t_ns[0])[: run.ran]
    inside = [stream for stream in run.streams if run.t0_ns <= stream.started_ns < run.t1_ns]
    values, share = ttft_ms(first), cached_share(first)
    return {
        "ttft_ms": median(values),
        "ttft_p90_ms": percentile(values, 90),
        "ttft_p99_ms": percentile(values, 99),
        "ttft_in_window_ms": median(ttft_ms(inside)),
        "ttft_kind": ttft_kind(share),
        "cached_share": share,
        "prompt_tokens": median([float(stream.prompt_tokens) for stream in first if stream.prompt_tokens]),
    }


def _first_of_each_lane(streams: list[Stream]) -> list[Stream]:
    first: dict[int, Stream] = {}
    for stream in streams:
        first.setdefault(stream.lane, stream)
    return list(first.values())


def token_source(streams: list[Stream]) -> str:
    """How tokens were counted, the weakest source of all streams that had tokens."""
    sources = {stream.source for stream in streams if stream.t_ns}
    return next((source for source in ("events", "reconciled", "usage") if source in sources), "unknown")


def prefill(streams: list[Stream]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(figures, details) of a prefill cell: tok/s = prompt tokens / TTFT of each request; the median is the figure."""
    repeats = [_prefill_repeat(stream) for stream in streams]
    speeds = [repeat["tok_s"] for repeat in repeats if repeat["tok_s"] is not None]
    share = cached_share(streams)
    figures = {
        "total_tok_s": median(speeds),
        "ttft_ms": median(ttft_ms(streams)),
        "ttft_kind": ttft_kind(share),
        "cached_share": share,
        "completed": len(streams),
        "prompt_tokens": median([float(stream.prompt_tokens) for stream in streams if stream.prompt_tokens]),
        "token_source": "usage" if all(stream.prompt_tokens for stream in streams) else "unknown",
    }
    server_ms = [repeat["server_prefill_ms"] for repeat in repeats if repeat["server_prefill_ms"] is not None]
    details = {
        "repeats": repeats,
        "tok_s_min": min(speeds, default=None),
        "tok_s_max": max(speeds, default=None),
        "server_prefill_ms": median(server_ms),
    }
    return figures, details


def _prefill_repeat(stream: Stream) -> dict[str, Any]:
    ttft = ttft_ms([stream])[0]
    return {
        "ttft_ms": ttft,
        "tok_s": stream.prompt_tokens / ttft * 1000 if stream.prompt_tokens else None,
        "prompt_tokens": stream.prompt_tokens,
        "cached_tokens": stream.cached_tokens,
        "server_prefill_ms": stream.prompt_ms,
    }
