"""What a reader must know before believing the figures: failures, flags, what was mixed or only stated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from speedmatrix import merge, validity
from speedmatrix.findings.finding import Finding, Found, name_of
from speedmatrix.formats import counted, listed, percent, speed
from speedmatrix.matrix import Place, Results

REPEATS_DIFFER = 0.05
AGREES_PCT = validity.SERVER_DISAGREES_PCT
MANY = 6


def _names(places: Iterable[Place]) -> str:
    names = [name_of(place) for place in places]
    return listed(names) if len(names) <= MANY else f"{', '.join(names[:MANY])} and {len(names) - MANY} more"


def _did_not_start(results: Results) -> Found:
    if not results.health["facts"] and results.health["error"]:
        started = results.health.get("started", False)
        advice = "Mend what it says" if started else "Look into logs/ for its own log, mend its launch command"
        what = "can't be measured" if started else "did not start"
        yield Finding(
            "problem",
            f"{results.name} {what}: {results.health['error']}",
            "None of its cells could be measured.",
            f"{advice}, and run again: only {results.name} is measured then.",
        )


def _mixed_fingerprints(results: Results) -> Found:
    for what, names in merge.odd_fingerprints(results.cells).get(results.name, {}).items():
        yield Finding(
            "problem",
            f"Not one server: {', '.join(names)} ({what}) measured something else than the other cells of"
            f" {results.name}.",
            "Another version, model, launch command, KV cache or machine: these figures must not be compared with the"
            " rest.",
            f"Delete results/servers/{results.name} and run again, so that all cells are of one server.",
            tuple(place for place in results.places if {merge.cell_name(cell) for cell in place.cells} & set(names)),
        )


def _failed(results: Results) -> Found:
    """By reason; of a cell with several repeats a single one may have failed."""
    by_reason: dict[str, list[tuple[Place, Any]]] = defaultdict(list)
    for place in results.places:
        for cell in place.cells:
            if cell["status"] == "failed":
                by_reason[cell["reason"] or "no reason was kept"].append((place, cell))
    for reason, runs in by_reason.items():
        places = tuple(dict.fromkeys(place for place, _ in runs))
        some = [place for place in places if place.measured]
        meaning = f"No figure for {_names(p for p in places if not p.measured)}." if len(some) < len(places) else ""
        others = f" {_names(some)}: the figures are of the other repeats." if some else ""
        yield Finding(
            "problem",
            f"{counted(len(runs), 'cell' if len(runs) == len(places) else 'measurement')} failed: {reason}",
            (meaning + others).strip(),
            "Run again: failed cells, and only they, are tried anew. The job's log in logs/ holds the details.",
            places,
        )


def _flagged(results: Results) -> Found:
    for name, flag in validity.FLAGS.items():
        places = tuple(place for place in results.places if name in place.flags)
        if places:
            never = " It is kept out of peaks and knees." if name in validity.NEVER_BEST else ""
            claim = f"{counted(len(places), 'cell')} flagged {name}: {_names(places)}."
            yield Finding("warning", claim, flag.happened + never, flag.advice, places)


def _limited(results: Results) -> Found:
    places = tuple(place for place in results.places if place.status == "limited")
    if places:
        yield Finding(
            "warning",
            f"The server ran fewer requests at once than were asked for: {_names(places)}.",
            f"{_first_sentence(places[-1].shown)} The others waited; the figures are of those that ran.",
            "Raise the server's own limit (vLLM --max-num-seqs, SGLang --max-running-requests, llama.cpp --parallel)"
            " or measure fewer requests at once.",
            places,
        )


def _first_sentence(cell: dict[str, Any]) -> str:
    reason = str(cell["reason"])
    return f"At {cell['concurrency']}: {reason}."


def _repeats_differ(results: Results) -> Found:
    differing = [place for place in results.decode if place.spread > REPEATS_DIFFER]
    if differing:
        widest = max(differing, key=lambda place: place.spread)
        yield Finding(
            "warning",
            f"Repeats of the same cell differ by up to {100 * widest.spread:.0f} % ({name_of(widest)}).",
            f"{counted(len(differing), 'cell')} of {len(results.decode)} spread by more than"
            f" {100 * REPEATS_DIFFER:.0f} % between lowest and highest; the page shows medians.",
            "Look for other work on the machine, and for throttling; raise measure.duration_s.",
            tuple(differing),
        )


def _does_not_reconcile(results: Results) -> Found:
    odd = [place for place in results.decode if place.measured and not place.reconciles]
    if odd:
        one = max(odd, key=lambda place: place.concurrency)
        active = one.get("active_avg") or one.concurrency
        each, total = one.get("request_tok_s") or 0.0, one.get("total_tok_s")
        yield Finding(
            "warning",
            f"Per-request and total speed do not reconcile in {counted(len(odd), 'cell')}: {_names(odd)}.",
            f"At {name_of(one)}, {active:.0f} requests at {speed(each)} tok/s make {speed(active * each)}, and the"
            " total"
            f" is {speed(total)}: the two figures were not taken over the same time, or requests differ much.",
            "Trust the total; per request it is the total ÷ requests at work.",
            tuple(odd),
        )


def _prompts_not_cold(results: Results) -> Found:
    off = "To see it cold, switch prefix caching off."
    told = {
        "warm": ("TTFT is warm", "Their prompts came from the prefix cache, so TTFT mostly excludes prefill.", off),
        "mixed": (
            "TTFT is mixed",
            "Part of their prompts came from the prefix cache: TTFT has part of prefill.",
            off,
        ),
        "unknown": (
            "Whether TTFT is cold is unknown",
            "The server does not tell whether a prefix cache held the prompts, so TTFT may exclude prefill.",
            "Let the server tell cached tokens in its usage or its metrics, or switch prefix caching off.",
        ),
    }
    for kind, (claim, meaning, advice) in told.items():
        places = tuple(place for place in results.decode if place.figures.get("ttft_kind") == kind)
        shared = all(cell["measure"].get("prompts") == "shared" for place in places for cell in place.cells)
        if places and not (kind == "warm" and shared):  # then it was asked for
            yield Finding("note", f"{claim} at {_names(places)}.", meaning, advice, places)


def _imported(results: Results) -> Found:
    sources = dict.fromkeys(cell["imported"] for cell in results.cells if cell.get("imported"))
    for source in sources:
        places = tuple(p for p in results.places if any(cell.get("imported") == source for cell in p.cells))
        yield Finding(
            "note",
            f"{counted(len(places), 'cell')} imported: {source}.",
            "Another tool measured these figures by its own method; no arrivals were kept, so they can't be computed"
            " again.",
            "Compare them with figures of this tool only with that in mind.",
        )


def _server_agrees(results: Results) -> Found:
    told = [abs(diff) for place in results.decode if (diff := place.get("server_diff_pct")) is not None]
    if told and max(told) <= AGREES_PCT:
        worst = percent(1 + max(told) / 100).lstrip("+−±")
        yield Finding(
            "good", f"The server's own count of tokens agrees within {worst} in {counted(len(told), 'cell')}."
        )


RULES = [
    *(_did_not_start, _mixed_fingerprints, _failed, _flagged, _limited, _repeats_differ),
    _does_not_reconcile,
    *(_prompts_not_cold, _imported, _server_agrees),
]
