"""Rules → flags, each with its one threshold, what happened and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from speedmatrix import cycles, metrics
from speedmatrix.arrivals import Run, Stream

UNSTEADY_SHARE = 0.05
SHORT_WINDOW_STEPS = 20
SERVER_DISAGREES_PCT = 2.0
CLIENT_CPU_SHARE = 0.9
CLIENT_LAG_P99_MS = 20.0  # in the window; before it, the worst, where that is over CLIENT_RAMP_SHARE of TTFT
CLIENT_RAMP_SHARE = 0.05
INEXACT_TEXT_SHARE = 0.005  # where prompts are text; token ids must be exact
LUMP_EVENTS = 3  # events that come together with a stream's first one
REPEATED_SHARE = 0.5  # of the window's text that is one cycle
INEXACT, BUFFERED = "inexact_context", "buffered"


@dataclass(frozen=True)
class Flag:
    """One rule: `happened` and `advice` are the sentences that a reader sees."""

    name: str
    happened: str
    advice: str


@dataclass(frozen=True)
class Meant:
    """What was asked for: prompt tokens, whether they were sent as token ids, and the most output tokens."""

    prompt_tokens: int
    ids: bool
    max_output_tokens: int


@dataclass(frozen=True)
class Evidence:
    """What the rules look at: the run, its figures, what was meant, the client's state, the server's preemptions."""

    run: Run
    figures: dict[str, Any]
    meant: Meant
    client: dict[str, float | None]
    preemptions: float | None = None


def _prefill_in_window(seen: Evidence) -> str | None:
    restarts = seen.figures["restarts"]
    return f"{restarts} requests began inside the window" if restarts else None


def inexact(streams: list[Stream], meant: Meant) -> str | None:
    """What the server counted where that is another number of prompt tokens than was meant, in any stream."""
    allowed = 0 if meant.ids else INEXACT_TEXT_SHARE * meant.prompt_tokens
    told = [one.prompt_tokens for one in streams if one.prompt_tokens]
    other = [tokens for tokens in told if abs(tokens - meant.prompt_tokens) > allowed]
    if not other:
        return None
    worst = max(other, key=lambda tokens: abs(tokens - meant.prompt_tokens))
    return f"{worst:,} prompt tokens counted, {meant.prompt_tokens:,} meant, in {len(other)} of {len(told)} requests"


def _inexact_context(seen: Evidence) -> str | None:
    return inexact(seen.run.streams, seen.meant)


def _unsteady(seen: Evidence) -> str | None:
    traces = [metrics.trace(stream) for stream in seen.run.streams]
    t0, t1 = float(seen.run.t0_ns), float(seen.run.t1_ns)
    middle = (t0 + t1) / 2
    first, second = (metrics.output_tokens(traces, *half) for half in ((t0, middle), (middle, t1)))
    if abs(first - second) <= UNSTEADY_SHARE * max(first, second):
        return None
    half_s = (middle - t0) / 1e9
    return f"{first / half_s:,.1f} tok/s in the first half, {second / half_s:,.1f} in the second"


def _short_window(seen: Evidence) -> str | None:
    itl, window_ms = seen.figures["itl_ms"], seen.figures["measured_s"] * 1000
    if itl is not None and window_ms >= SHORT_WINDOW_STEPS * itl:
        return None
    return f"{window_ms / itl:.1f} steps of {itl:,.1f} ms" if itl else "no two tokens of one request"


def _server_disagrees(seen: Evidence) -> str | None:
    difference: float | None = seen.figures.get("server_diff_pct")
    if difference is None or abs(difference) <= SERVER_DISAGREES_PCT:
        return None
    return f"the server counted {difference:+.1f} %"


def _client_bound(seen: Evidence) -> str | None:
    share, lag, ramp = (seen.client[key] or 0 for key in ("cpu_share", "lag_p99_ms", "ramp_lag_max_ms"))
    felt = ramp > CLIENT_LAG_P99_MS and ramp > CLIENT_RAMP_SHARE * (seen.figures["ttft_ms"] or 0)
    if share <= CLIENT_CPU_SHARE and lag <= CLIENT_LAG_P99_MS and not felt:
        return None
    late = f"late by {lag:.0f} ms in the window (99th percentile), by up to {ramp:.0f} ms before"
    return f"{100 * share:.0f} % of a core; {late}"


def _stopped_early(seen: Evidence) -> str | None:
    most = seen.meant.max_output_tokens
    early = [sum(s.tokens) for s in seen.run.streams if s.finish == "stop" and sum(s.tokens) < most]
    return f"{len(early)} streams, one after {min(early):,} of {most:,} tokens" if early else None


def _events_counted(seen: Evidence) -> str | None:
    return "no usage in the stream" if seen.figures["token_source"] == "events" else None


def _preempted(seen: Evidence) -> str | None:
    return f"preempted {seen.preemptions:,.0f} times" if seen.preemptions else None


def in_lumps(streams: list[Stream]) -> bool:
    """Whether first tokens came together with the next ones, and most others did so too."""
    first, each = _lump_sizes(streams)
    return first >= LUMP_EVENTS and each >= 2


def _lump_sizes(streams: list[Stream]) -> tuple[float, float]:
    """Events that came with a stream's first one, and at once on average: medians over streams; 0 of no long stream."""
    long = [one for one in streams if len(one.t_ns) >= LUMP_EVENTS]
    if not long:
        return 0.0, 0.0
    first = [one.t_ns.count(one.t_ns[0]) for one in long]
    return float(np.median(first)), float(np.median([len(one.t_ns) / len(set(one.t_ns)) for one in long]))


def _buffered(seen: Evidence) -> str | None:
    if not in_lumps(seen.run.streams) or _client_bound(seen):  # a late client makes lumps as well
        return None
    first, each = _lump_sizes(seen.run.streams)
    return f"{first:.0f} events at once at the start, then {each:.1f} on average"


def _repeating(seen: Evidence) -> str | None:
    texts: dict[int, str] = {}
    for one in seen.run.streams:
        if one.texts is not None:
            inside = [text for t, text in zip(one.t_ns, one.texts, strict=True) if seen.run.t0_ns <= t < seen.run.t1_ns]
            texts[one.lane] = texts.get(one.lane, "") + "".join(inside)
    looping = [cycles.share(text) >= REPEATED_SHARE for text in texts.values() if text]
    return f"{sum(looping)} of {len(looping)} requests" if sum(looping) > len(looping) / 2 else None


RULES: list[tuple[Flag, Callable[[Evidence], str | None]]] = [
    (
        Flag(
            "prefill_in_window",
            "A request ended and its successor's prompt was processed inside the window: the load was mixed.",
            "Raise measure.max_output_tokens so that requests outlast the window.",
        ),
        _prefill_in_window,
    ),
    (
        Flag(
            INEXACT,
            "The server counted another number of prompt tokens than was meant"
            f" (with prompts as text: by over {100 * INEXACT_TEXT_SHARE:g} %).",
            "Look whether the server adds tokens of its own to prompts, such as a template or a second BOS.",
        ),
        _inexact_context,
    ),
    (
        Flag(
            "unsteady",
            f"The window's halves differ by more than {100 * UNSTEADY_SHARE:.0f} %.",
            "Look for other work on the machine and for throttling; raise measure.duration_s. Where contexts are short,"
            " they grow by their output within the window, and decoding slows with them.",
        ),
        _unsteady,
    ),
    (
        Flag(
            "short_window",
            f"The window holds fewer than {SHORT_WINDOW_STEPS} steps.",
            "Raise measure.duration_s.",
        ),
        _short_window,
    ),
    (
        Flag(
            "server_disagrees",
            f"The server's own count of generated tokens differs by more than {SERVER_DISAGREES_PCT:g} %.",
            "Look for other clients of the server, and for a proxy in between.",
        ),
        _server_disagrees,
    ),
    (
        Flag(
            "client_bound",
            f"The measuring process used or waited for over {100 * CLIENT_CPU_SHARE:.0f} % of a core, or it came late.",
            "Measure from a faster or an idle machine: the server may be faster than this figure.",
        ),
        _client_bound,
    ),
    (
        Flag(
            "stopped_early",
            "Streams ended before their maximum output although they were asked to go on.",
            "The server does not take ignore_eos: figures hold, but requests restart within the window.",
        ),
        _stopped_early,
    ),
    (
        Flag(
            "events_counted",
            "The server told no token counts: each event was taken for one token.",
            "Switch usage in streams on at the server, or read the figures as events.",
        ),
        _events_counted,
    ),
    (
        Flag(
            "preempted",
            "The server threw running requests out of its KV cache to make room, and computed them again.",
            "Its KV cache holds less than it says at this load: ask for fewer requests at once or less output.",
        ),
        _preempted,
    ),
    (
        Flag(
            "repeating",
            f"The text went round in one exact cycle for over {100 * REPEATED_SHARE:.0f} % of the window.",
            "Loops flatter speculative decoding: set a temperature in measure.request, or another seed.",
        ),
        _repeating,
    ),
    (
        Flag(
            BUFFERED,
            f"Events came in lumps, {LUMP_EVENTS} or more with a stream's first: something holds them back on the way.",
            "Measure without the proxy, or switch its buffering off; TTFT and time between tokens are left out.",
        ),
        _buffered,
    ),
]
FLAGS: dict[str, Flag] = {flag.name: flag for flag, _ in RULES}


# What carries one of these is never a peak, a knee, a baseline or a passed limit.
NEVER_BEST = frozenset(["prefill_in_window", "client_bound", "server_disagrees", BUFFERED])


def flags(seen: Evidence) -> dict[str, str]:
    """{flag: what was seen} of all rules that a measured decode cell breaks, in the order of RULES."""
    return {flag.name: what for flag, broken in RULES if (what := broken(seen))}


def client_state(run: Run) -> dict[str, float | None]:
    """How busy and how late the measuring process was: share of one core used or waited for, event loop's lag in ms."""
    lags = np.asarray(run.lags_ns, dtype=np.float64) / 1e6
    return {
        "cpu_share": run.cpu_share,
        "lag_max_ms": float(lags.max()) if len(lags) else None,
        "lag_p99_ms": metrics.percentile(lags, 99),
        "ramp_lag_max_ms": run.ramp_lag_ns / 1e6,
    }
