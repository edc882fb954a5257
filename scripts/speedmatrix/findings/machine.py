"""The machine behind the figures: settings unlike others', slowdowns, energy and cost."""

from __future__ import annotations

from collections import defaultdict

from speedmatrix.findings.finding import Finding, Found, Level, name_of
from speedmatrix.formats import counted, listed, small
from speedmatrix.matrix import Place, Results
from speedmatrix.unusual import unusual

_SLOWED = {
    "power-capped": (
        "The GPUs ran at their power limit: clocks gave way to it.",
        "Compare at the same limit only; a higher one (nvidia-smi -pl) or better cooling may give more speed.",
    ),
    "thermal": (
        "The GPUs were slowed down by heat: another room, fan or hour gives other figures.",
        "Look after cooling and measure again before these figures are published.",
    ),
    "hardware slowdown": (
        "The hardware itself held the GPUs back: power supply, cabling or an emergency brake.",
        "Look after power supply and cabling, and measure again before these figures are published.",
    ),
}


def _settings(results: Results) -> Found:
    for one in unusual(results.health.get("hardware") or {}):
        yield Finding("warning", one.what, one.meaning, one.advice)


def _slowed(results: Results) -> Found:
    by_what: dict[str, list[Place]] = defaultdict(list)
    for place in results.places:
        if (what := place.figures.get("throttle")) in _SLOWED:
            by_what[str(what)].append(place)
    for what, places in by_what.items():
        meaning, advice = _SLOWED[what]
        names = listed(map(name_of, places[:6])) + (" and more" if len(places) > 6 else "")
        level: Level = "note" if what == "power-capped" else "warning"
        yield Finding(level, f"{counted(len(places), 'cell')} {what}: {names}.", meaning, advice, tuple(places))


def _energy(results: Results) -> Found:
    told = [place for place in results.decode if place.sound and place.get("tok_per_j")]
    if told:
        best = max(told, key=lambda place: place.get("tok_per_j") or 0)
        worth = small(best.get("tok_per_j"))
        yield Finding("good", f"Most for the energy: {worth} tokens per joule at {name_of(best)}.", places=(best,))


def _cheapest(results: Results) -> Found:
    told = [place for place in results.decode if place.sound and place.get("price_per_mtok")]
    if told:
        best = min(told, key=lambda place: place.get("price_per_mtok") or 0)
        price = small(best.get("price_per_mtok"))
        yield Finding(
            "good",
            f"Cheapest output: {price} per million tokens at {name_of(best)}, by the stated price per hour.",
            places=(best,),
        )


RULES = [_settings, _slowed, _energy, _cheapest]
