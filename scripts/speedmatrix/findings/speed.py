"""How fast, where it ends, and what more requests and longer contexts cost."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from speedmatrix.cells import size_name
from speedmatrix.findings.capacity import fitting
from speedmatrix.findings.finding import Finding, Found, Level, contexts_of, name_of
from speedmatrix.formats import counted, fine_ms, listed, ms, percent, span, speed
from speedmatrix.matrix import Place, Results

DROP = 0.05  # less in total than with fewer requests
NEARLY_ALL = 0.9  # of a context's highest total: from there on more requests add little
STILL_GROWS = 0.1  # from the second largest number of requests to the largest
ROUGH = 0.15  # of a total whose window was unsteady or short: smaller differences may be chance
WIDE = 4  # times as long
READER_TOK_S = 20.0  # well above the speed at which people read


def _caveat(places: Iterable[Place]) -> str:
    """What must be known of the cells that a comparison rests on."""
    flags = list(dict.fromkeys(flag for place in places for flag in place.flags))
    return f" Cells of this comparison are flagged {listed(flags)}." if flags else ""


def _total(place: Place) -> float:
    return place.get("total_tok_s") or 0.0


def _peak(results: Results) -> Found:
    sound = [place for place in results.decode if place.sound]
    if sound:
        best = max(sound, key=_total)
        with_each = best.concurrency > 1 and best.reconciles
        each = f", {speed(best.get('request_tok_s'))} each" if with_each else ""
        yield Finding("good", f"Peak: {speed(_total(best))} tok/s in total at {name_of(best)}{each}.", places=(best,))


def _single_reader(results: Results) -> Found:
    if alone := results.alone:
        speeds = span((_total(place) for place in alone), speed)
        left_out = [place for place in results.decode if place.concurrency == 1 and place.measured and not place.sound]
        without = "".join(f", without {name_of(place)} ({listed(place.flags)})" for place in left_out)
        claim = f"One request alone: {speeds} tok/s at {contexts_of(alone)} context{without}."
        yield Finding("good", claim, places=tuple(alone))


def _noise(*places: Place) -> float:
    """What a difference must exceed to be more than chance: the repeats' spread, and of an unsteady window a part."""
    rough = any({"unsteady", "short_window"} & set(place.flags) for place in places)
    return max(ROUGH if rough else 0.0, *(place.spread for place in places))


def _drops(results: Results) -> Found:
    """More requests at once that yield less in total than fewer."""
    found: dict[tuple[int, int], list[tuple[Place, Place]]] = defaultdict(list)
    for context in results.contexts:
        for fewer, larger in itertools.pairwise(results.row(context)):
            if _falls(fewer, larger):
                found[fewer.concurrency, larger.concurrency].append((fewer, larger))
    for (few, more), pairs in found.items():
        lost = span((100 * (1 - _total(b) / _total(a)) for a, b in pairs), lambda value: f"{value:.0f}")
        a, b = max(pairs, key=lambda pair: 1 - _total(pair[1]) / _total(pair[0]))
        yield Finding(
            "warning",
            f"{more} requests at once yield {lost} % less in total than {few}, at"
            f" {contexts_of([p for p, _ in pairs])}.",
            f"{speed(_total(b))} against {speed(_total(a))} tok/s at {size_name(a.context)}: more requests made the"
            f" whole server slower, and each waits {ms(b.get('ttft_ms'))} instead of {ms(a.get('ttft_ms'))} for its"
            f" first token.{_recovery(results, pairs)}" + _caveat(place for pair in pairs for place in pair),
            f"{_between(few, more)} Then look at what the server does differently from that number on: graph capture"
            " sizes, attention and expert kernels, preemption; or let no such number run at once and queue the rest.",
            tuple(place for _, place in pairs),
        )


def _falls(fewer: Place, larger: Place) -> bool:
    return _total(larger) < (1 - max(DROP, _noise(fewer, larger))) * _total(fewer)


def _recovery(results: Results, pairs: list[tuple[Place, Place]]) -> str:
    """Where still more requests overcome the drop."""
    later = [
        place
        for few, more in pairs
        for place in results.row(few.context)
        if place.concurrency > more.concurrency and _total(place) > _total(few)
    ]
    return f" Still more requests overcome it: {listed(map(name_of, later))}." if later else ""


def _between(few: int, more: int) -> str:
    between = sorted({few + max(1, (more - few) // 4), (few + more) // 2} - {few, more})
    return f"Measure {listed(map(str, between))} requests to find where it begins." if between else ""


def _knee(results: Results) -> Found:
    """The smallest number of requests with nearly all of a context's throughput, where more were measured."""
    found: dict[int, list[tuple[Place, Place]]] = defaultdict(list)
    for context in results.contexts:
        row = results.row(context)
        knee = next((place for place in row if _total(place) >= NEARLY_ALL * max(map(_total, row))), None)
        after = [place for place in row if knee and place.concurrency > knee.concurrency]
        if knee and after and not _falls(knee, after[0]):  # a drop is told as such
            found[knee.concurrency].append((knee, after[-1]))
    for lanes, pairs in found.items():
        knee, last = pairs[0]
        gain = "little" if any(_total(b) > _total(a) for a, b in pairs) else "no"
        yield Finding(
            "note",
            f"From {counted(lanes, 'request')} at once on, more add latency and {gain} throughput, at"
            f" {contexts_of([place for place, _ in pairs])}.",
            f"At {size_name(knee.context)}: {speed(_total(knee))} tok/s with {lanes}, {speed(_total(last))} with"
            f" {last.concurrency}; time between tokens goes from {fine_ms(knee.get('itl_ms'))} to"
            f" {fine_ms(last.get('itl_ms'))}." + _caveat(place for pair in pairs for place in pair),
            f"Let {counted(lanes, 'request')} run at once and queue the rest, unless a queue is worse for your users"
            " than slow tokens.",
            tuple(place for place, _ in pairs),
        )


def _still_growing(results: Results) -> Found:
    """The most requests that were measured yield more than any smaller number did."""
    ends = [(max(row[:-1], key=_total), row[-1]) for c in results.contexts if len(row := results.row(c)) > 1]
    growing = [(a, b) for a, b in ends if _total(b) > (1 + max(STILL_GROWS, _noise(a, b))) * _total(a) > 0]
    if growing:
        a, b = max(growing, key=lambda pair: _total(pair[1]) / _total(pair[0]))
        fits = [(place, most) for _, place in growing if (most := fitting(place)) is not None]
        room = f" The KV cache holds {listed(f'{most} at {size_name(p.context)}' for p, most in fits)}." if fits else ""
        yield Finding(
            "note",
            "Throughput still grew with the most requests that were measured, at"
            f" {contexts_of([p for _, p in growing])}.",
            f"At {size_name(b.context)}, {b.concurrency} requests yield {percent(_total(b) / _total(a))} against"
            f" {a.concurrency}, the best before: the server's limit lies further up."
            + _caveat(place for pair in growing for place in pair),
            f"Add larger numbers to matrix.decode.concurrency.{room}",
            tuple(place for _, place in growing),
        )


def _longer_context(results: Results) -> Found:
    """What a longer context costs each request: alone, and at the most requests with a context four times as long."""
    by_lanes = [(lanes, _ends_of(results, lanes)) for lanes in results.concurrency]
    known = [(lanes, *ends) for lanes, ends in by_lanes if ends]
    if not known:
        return
    crowded = [one for one in known if one[2].context >= WIDE * one[1].context]
    shown = list(dict.fromkeys([known[0], *crowded[-1:]]))
    costs = [
        f"{percent(_each(long) / _each(short))} from {size_name(short.context)} to {size_name(long.context)} with"
        f" {counted(lanes, 'request')}"
        for lanes, short, long in shown
    ]
    yield Finding(
        "note",
        f"What a longer context does to each request's speed: {', '.join(costs)}.",
        " ".join(_cost(short, long) for _, short, long in shown)
        + _caveat(place for _, *pair in shown for place in pair),
        "Where only TTFT grows, prefix caching and chunked prefill are what helps; where decoding slows, the"
        " attention backend and the KV cache's type.",
        tuple(long for _, _, long in shown),
    )


def _each(place: Place) -> float:
    return place.get("request_tok_s") or 0.0


def _ends_of(results: Results, lanes: int) -> tuple[Place, Place] | None:
    """The shortest and the longest context that were measured with so many requests; None where there is but one."""
    column = [place for place in results.decode if place.concurrency == lanes and place.sound and _each(place)]
    return (column[0], column[-1]) if len(column) > 1 else None


def _cost(short: Place, long: Place) -> str:
    return (
        f"With {counted(short.concurrency, 'request')}: {speed(_each(short))} → {speed(_each(long))} tok/s each,"
        f" {fine_ms(short.get('itl_ms'))} → {fine_ms(long.get('itl_ms'))} between tokens, first token after"
        f" {ms(short.get('ttft_ms'))} → {ms(long.get('ttft_ms'))}."
    )


def _prefill_falls(results: Results) -> Found:
    sound = [place for place in results.prefill if place.sound]
    if len(sound) < 2:
        return
    best, longest = max(sound, key=_total), sound[-1]
    change = percent(_total(longest) / _total(best)) if _total(best) else ""
    if best is longest:
        claim = f"Prefill is fastest at the longest context: {speed(_total(best))} tok/s at {size_name(best.context)}."
    else:
        claim = (
            f"Prefill: {speed(_total(best))} tok/s at {size_name(best.context)},"
            f" {speed(_total(longest))} ({change}) at {size_name(longest.context)}."
        )
    yield Finding("good", claim, places=(best, longest))


def _readers(results: Results) -> Found:
    """How many requests at once still get READER_TOK_S each at each context."""
    yield from _most_at_once(
        results,
        lambda place: (place.get("request_tok_s") or 0) >= READER_TOK_S,
        f"{READER_TOK_S:g} tok/s for each request",
        "well above the speed at which people read",
    )


def _objective(results: Results) -> Found:
    """How many requests at once meet the latencies that the config asks for."""
    wanted = {name: limit for name, limit in results.slo.items() if limit is not None}
    if wanted:
        words = {"ttft_ms": "TTFT", "itl_ms": "time between tokens"}
        goal = listed(f"{words[name]} of at most {limit:g} ms" for name, limit in wanted.items())

        def met(place: Place) -> bool:
            return all((value := place.get(name)) is not None and value <= limit for name, limit in wanted.items())

        yield from _most_at_once(results, met, goal, "what report.slo asks for")


def _most_at_once(results: Results, met: Callable[[Place], bool], goal: str, why: str) -> Found:
    """The most requests at once with which the goal is met, by context; one sentence over all contexts."""
    rows = [(context, [p for p in results.decode if p.context == context]) for context in results.contexts]
    told = [(context, *_up_to(row, met)) for context, row in rows if any(place.sound for place in row)]
    if not told:
        return
    grouped = itertools.groupby(told, key=lambda one: one[1:])
    parts = [f"{words} at {listed(size_name(c) for c, *_ in group)}" for (_, words), group in grouped]
    most = max(lanes for _, lanes, _ in told)
    claim = f"{goal}: {'; '.join(parts)}." if most else f"No number of requests gets {goal}."
    level: Level = "note" if most else "warning"
    places = tuple(p for context, lanes, _ in told if lanes and (p := results.at(context, lanes)))
    waits = ", ".join(f"{ms(p.get('ttft_ms'))} at {name_of(p)}" for p in places)
    yield Finding(
        level,
        claim[0].upper() + claim[1:],
        f"Measured cells only; {why}."
        + (f" With so many starting at once the first token takes {waits}." if waits else ""),
        "These are the most requests to let in at once, as far as that goal goes."
        if most
        else "Ask for less, or look for a faster engine, quantisation or machine.",
        places,
    )


def _up_to(row: list[Place], met: Callable[[Place], bool]) -> tuple[int, str]:
    """(most requests up to which all numbers are sound and meet the goal, the same in words)."""
    passed = list(itertools.takewhile(lambda place: place.sound and met(place), row))
    if not passed:
        return 0, "none"
    most = passed[-1].concurrency
    ran = [place for place in row if place.measured]
    return most, f"up to {counted(most, 'request')}" + (" (the most measured)" if len(passed) == len(ran) else "")


def _acceptance(results: Results) -> Iterator[Finding]:
    told = [(length, place) for place in results.decode if (length := place.get("acceptance_length"))]
    if told:
        lengths = span((length for length, _ in told), lambda value: f"{value:.2f}")
        yield Finding("good", f"Speculative decoding yields {lengths} tokens a step.", places=tuple(p for _, p in told))


RULES = [
    *(_peak, _single_reader, _drops, _knee, _still_growing, _readers, _objective, _longer_context, _prefill_falls),
    _acceptance,
]
