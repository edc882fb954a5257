"""How fast, where it ends, and what more requests and longer contexts cost."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from speedmatrix.cells import size_name
from speedmatrix.findings.finding import Finding, Found, Level, contexts_of, name_of
from speedmatrix.formats import counted, fine_ms, listed, ms, percent, span, speed
from speedmatrix.matrix import Place, Results

DROP = 0.05  # less in total than with fewer requests
NEARLY_ALL = 0.9  # of a context's highest total: from there on more requests add little
STILL_GROWS = 0.1  # from the second largest number of requests to the largest
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
        each = f", {speed(best.get('request_tok_s'))} each" if best.concurrency > 1 else ""
        yield Finding("good", f"Peak: {speed(_total(best))} tok/s in total at {name_of(best)}{each}.", places=(best,))


def _single_reader(results: Results) -> Found:
    alone = [place for place in results.decode if place.sound and place.concurrency == 1]
    if alone:
        speeds = span((_total(place) for place in alone), speed)
        yield Finding(
            "good", f"One request alone: {speeds} tok/s at {contexts_of(alone)} context.", places=tuple(alone)
        )


def _drops(results: Results) -> Found:
    """More requests at once that yield less in total than fewer."""
    found: dict[tuple[int, int], list[tuple[Place, Place]]] = defaultdict(list)
    for context in results.contexts:
        for fewer, larger in itertools.pairwise(results.row(context)):
            if _total(larger) < (1 - DROP) * _total(fewer):
                found[fewer.concurrency, larger.concurrency].append((fewer, larger))
    for (few, more), pairs in found.items():
        lost = span((100 * (1 - _total(b) / _total(a)) for a, b in pairs), lambda value: f"{value:.0f}")
        a, b = max(pairs, key=lambda pair: 1 - _total(pair[1]) / _total(pair[0]))
        between = sorted({few + max(1, (more - few) // 4), (few + more) // 2} - {few, more})
        measure = f"Measure {listed(map(str, between))} requests to find where; then cap" if between else "Cap"
        yield Finding(
            "warning",
            f"{more} requests at once yield {lost} % less in total than {few}, at"
            f" {contexts_of([p for p, _ in pairs])}.",
            f"{speed(_total(b))} against {speed(_total(a))} tok/s at {size_name(a.context)}: more requests made the"
            f" whole server slower, and each waits {ms(b.get('ttft_ms'))} instead of {ms(a.get('ttft_ms'))} for its"
            " first token." + _caveat(place for pair in pairs for place in pair),
            f"{measure} the server at the better number and let the rest queue, or look at what it does by batch"
            " size: graph capture sizes, attention and expert kernels, preemption.",
            tuple(place for _, place in pairs),
        )


def _knee(results: Results) -> Found:
    """The smallest number of requests with nearly all of a context's throughput, where more were measured."""
    found: dict[int, list[tuple[Place, Place]]] = defaultdict(list)
    for context in results.contexts:
        row = results.row(context)
        if row:
            highest = max(map(_total, row))
            knee = next(place for place in row if _total(place) >= NEARLY_ALL * highest)
            if knee.concurrency < row[-1].concurrency:
                found[knee.concurrency].append((knee, row[-1]))
    for lanes, pairs in found.items():
        knee, last = pairs[0]
        yield Finding(
            "note",
            f"From {counted(lanes, 'request')} at once on, more add latency and little throughput, at"
            f" {contexts_of([place for place, _ in pairs])}.",
            f"At {size_name(knee.context)}: {speed(_total(knee))} tok/s with {lanes}, {speed(_total(last))} with"
            f" {last.concurrency}; time between tokens goes from {fine_ms(knee.get('itl_ms'))} to"
            f" {fine_ms(last.get('itl_ms'))}." + _caveat(place for pair in pairs for place in pair),
            f"Let {counted(lanes, 'request')} run at once and queue the rest, unless a queue is worse for your users"
            " than slow tokens.",
            tuple(place for place, _ in pairs),
        )


def _still_growing(results: Results) -> Found:
    last_steps = [(row[-2], row[-1]) for context in results.contexts if len(row := results.row(context)) > 1]
    growing = [(a, b) for a, b in last_steps if _total(b) > (1 + STILL_GROWS) * _total(a) > 0]
    if growing:
        a, b = max(growing, key=lambda pair: _total(pair[1]) / _total(pair[0]))
        yield Finding(
            "note",
            "Throughput still grew with the most requests that were measured, at"
            f" {contexts_of([p for _, p in growing])}.",
            f"At {size_name(b.context)}, {b.concurrency} requests yield {percent(_total(b) / _total(a))} against"
            f" {a.concurrency}: the server's limit lies further up."
            + _caveat(place for pair in growing for place in pair),
            "Add larger numbers to matrix.decode.concurrency; where the KV cache is what ends the row, it needs room"
            " first.",
            tuple(place for _, place in growing),
        )


def _longer_context(results: Results) -> Found:
    """What the longest context costs against the shortest, at the most requests that both were measured with."""
    rows = {context: {place.concurrency: place for place in results.row(context)} for context in results.contexts}
    known = [context for context in rows if rows[context]]
    if len(known) < 2:
        return
    short, long = known[0], known[-1]
    common = sorted(rows[short].keys() & rows[long].keys())
    costs = [_cost(rows[short][lanes], rows[long][lanes]) for lanes in dict.fromkeys([*common[:1], *common[-1:]])]
    if costs:
        yield Finding(
            "note",
            f"A context of {size_name(long)} instead of {size_name(short)} changes total speed by {costs[0][0]} at"
            f" {counted(common[0], 'request')}"
            + (f" and by {costs[-1][0]} at {common[-1]}." if len(common) > 1 else "."),
            " ".join(text for _, text in costs),
            "Where only TTFT grows, prefix caching and chunked prefill are what helps; where decoding slows, the"
            " attention backend and the KV cache's type.",
            tuple(rows[long][lanes] for lanes in dict.fromkeys([common[0], common[-1]])),
        )


def _cost(short: Place, long: Place) -> tuple[str, str]:
    change = percent(_total(long) / _total(short)) if _total(short) else "an unknown part"
    text = (
        f"With {counted(short.concurrency, 'request')}: {speed(_total(short))} → {speed(_total(long))} tok/s,"
        f" first token after {ms(short.get('ttft_ms'))} → {ms(long.get('ttft_ms'))}."
    )
    return change, text


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
    told = [(context, *_up_to(row, met)) for context in results.contexts if (row := results.row(context))]
    if not told:
        return
    grouped = itertools.groupby(told, key=lambda one: one[1:])
    parts = [f"{words} at {listed(size_name(c) for c, *_ in group)}" for (_, words), group in grouped]
    most = max(lanes for _, lanes, _ in told)
    claim = f"{goal}: {'; '.join(parts)}." if most else f"No number of requests gets {goal}."
    level: Level = "note" if most else "warning"
    advice = (
        "Where users wait for answers, these are the most requests to let in at once."
        if most
        else "Ask for less, or look for a faster engine, quantisation or machine."
    )
    places = tuple(p for context, lanes, _ in told if lanes and (p := results.at(context, lanes)))
    yield Finding(level, claim[0].upper() + claim[1:], f"Measured cells only; {why}.", advice, places)


def _up_to(row: list[Place], met: Callable[[Place], bool]) -> tuple[int, str]:
    """(most requests up to which all measured numbers meet the goal, the same in words)."""
    passed = list(itertools.takewhile(met, row))
    if not passed:
        return 0, "none"
    most = passed[-1].concurrency
    return most, f"up to {counted(most, 'request')}" + (" (the most measured)" if len(passed) == len(row) else "")


def _acceptance(results: Results) -> Iterator[Finding]:
    told = [(length, place) for place in results.decode if (length := place.get("acceptance_length"))]
    if told:
        lengths = span((length for length, _ in told), lambda value: f"{value:.2f}")
        yield Finding("good", f"Speculative decoding yields {lengths} tokens a step.", places=tuple(p for _, p in told))


RULES = [
    *(_peak, _single_reader, _drops, _knee, _still_growing, _readers, _objective, _longer_context, _prefill_falls),
    _acceptance,
]
