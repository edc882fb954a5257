"""The prompts' text: plain English prose without end and without a short cycle, the same on every machine.

Sentences are filled in from word lists by numbers drawn with SHA-256, which no Python version changes. A change of
anything here changes all prompts: raise METHOD then.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

CONTINUE = (
    "\n\nGo on from here with several new paragraphs in the same manner. Tell of places, people and work that were not"
    " mentioned yet, and repeat no sentence of the text above.\n\n"
)

# Words that nearly every vocabulary has as one token each, so that prompts that begin differently are equally long.
SHORT_WORDS = (
    "the and for are but not you all any can had her was one our out day get has him his how man new now old see two way"
    " who boy did its let put say she too use"
).split()


def text(seed: int, characters: int) -> str:
    """The first `characters` characters of the prose that belongs to `seed`."""
    parts: list[str] = []
    length = 0
    for paragraph in _paragraphs(seed):
        parts.append(paragraph)
        length += len(paragraph)
        if length >= characters:
            return "".join(parts)[:characters]
    raise AssertionError("the paragraphs never end")


class _Draws:
    """An endless, reproducible row of numbers: SHA-256 over seed and block number, four bytes each."""

    def __init__(self, seed: int) -> None:
        self._seed, self._block = seed, 0
        self._left: list[int] = []

    def below(self, limit: int) -> int:
        """A number from 0 to limit − 1."""
        if not self._left:
            data = b"".join(hashlib.sha256(f"{self._seed}/{self._block + i}".encode()).digest() for i in range(32))
            self._block += 32
            self._left = [int.from_bytes(data[i : i + 4]) for i in range(0, len(data), 4)]
        return self._left.pop() % limit


def _paragraphs(seed: int) -> Iterator[str]:
    draws = _Draws(seed)
    while True:
        sentences = [_sentence(draws) for _ in range(3 + draws.below(6))]
        yield " ".join(sentences) + "\n\n"


_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIOU])(?!one\b|uni|use|Eu)")


def _sentence(draws: _Draws) -> str:
    shape = SHAPES[draws.below(len(SHAPES))]

    def fill(match: re.Match[str]) -> str:
        return _word(match[1], draws)

    filled = shape
    while "{" in filled:  # a slot's words may hold slots of their own
        filled = _SLOT.sub(fill, filled)
    filled = _ARTICLE.sub(r"\1n ", filled)
    return filled[0].upper() + filled[1:]


def _word(slot: str, draws: _Draws) -> str:
    if slot == "number":
        return str(2 + draws.below(997))
    if slot == "year":
        return str(1781 + draws.below(240))
    if slot == "day":
        return f"{1 + draws.below(28)} {MONTHS[draws.below(12)]}"
    if slot == "hour":
        return f"{1 + draws.below(12)}:{draws.below(60):02d}"
    words = WORDS[slot]
    return words[draws.below(len(words))]


MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


def _list(words: str) -> list[str]:
    return [word.strip() for word in words.split(",")]


WORDS: dict[str, list[str]] = {
    "person": _list(
        "Alma Brandt, Teodor Vik, Mrs. Okafor, the harbour master, Ines, old Petrak, the apprentice, Captain Lund, Rosa"
        " Ferreira, the night clerk, Jonas, Doctor Amsel, the surveyor, Mirela, the twins from the mill, Hanne, the"
        " beekeeper, Mr. Adeyemi, the widow Karlsen, a travelling tuner, Yusuf, the librarian, Professor Ito, the baker's"
        " daughter, Emil, Kaja Soini, the ferryman, Noor, the stonecutter, Sister Agathe, Leopold, the tram driver,"
        " Wren Halloway, the glazier, Anselm, the second violinist, Bettina Zorn, the postmistress, Tomas, the shepherd,"
        " Farida, the chemist, Henrik Moe, a retired pilot, Ludmila, the watchmaker, Pio, the cartographer, Esther, the"
        " new engineer, Count Radek, the gardener, Maud, the interpreter, Silas Penn, the cook, Oriel, the lamplighter"
    ),
    "place": _list(
        "the harbour at Sondvik, the upper reservoir, the reading room, the drying loft, a siding near Varna, the old"
        " foundry, the eastern allotments, the weather station, the third floor, the customs shed, the vineyard, the"
        " museum's cellar, the salt works, a clearing above the lake, the telephone exchange, the observatory, the"
        " boathouse, the market hall, the quarry, the signal box, the orchard wall, the print shop, the lighthouse, the"
        " greenhouse, the bridge at Tarn, the infirmary, the dye house, a workshop in Lisle Street, the ferry landing,"
        " the seed vault, the village school, the slate roof, the archive, the ropewalk, the winter stables, the pump"
        " room, the courtyard, the pass road, the tide mill, the rehearsal hall, the bakery, the fish auction, the kiln"
        " yard, the chapel, the depot, the terrace, the canal lock, the power house, the herbarium, the cable car"
    ),
    "thing": _list(
        "ledger, copper kettle, barometer, bundle of letters, lathe, rowing boat, brass key, map of the coast, violin"
        " case, sack of barley, lantern, glass plate, folding chair, pair of scales, coil of rope, oak chest, clock"
        " movement, tin of varnish, telescope, drawing board, iron gate, bicycle, loaf of rye bread, water gauge, stove,"
        " crate of pears, sewing machine, gearbox, microscope slide, canvas bag, window frame, signal flag, bell,"
        " notebook, hand pump, wool blanket, printing plate, compass, jar of honey, ladder, turbine blade, chess set,"
        " saddle, recipe, spool of wire, seismograph, parcel, millstone, umbrella, fishing net, cast of a fossil, wooden"
        " leg, dictionary, thermometer, plough, accordion, pocket mirror, valve, anchor, envelope, tuning fork, candle"
    ),
    "things": _list(
        "ledgers, apples, bolts, herring barrels, letters, seedlings, roof tiles, lenses, boots, cables, field notes,"
        " tin plates, bees, sacks of cement, tickets, oysters, maps, clay pots, rail cars, cheeses, spare fuses, reeds,"
        " photographs, swallows, bricks, measuring rods, quinces, wine casks, punched cards, curtains, nails, lambs,"
        " beacons, pamphlets, engines, candles, walnuts, oars, ribbons, thermometers, ink bottles, sheaves, kites, bells"
    ),
    "quality": _list(
        "quiet, narrow, unpainted, heavy, patient, bright, rusted, careful, ordinary, crooked, pale, borrowed, stubborn,"
        " generous, damp, hollow, exact, sour, sturdy, faded, hurried, salted, upright, idle, amber, brittle, sleepless,"
        " clever, frozen, muddy, polite, tangled, weathered, early, uneven, solemn, spare, warm, elaborate, rough,"
        " transparent, forgotten, slender, obstinate, smoky, tidy, unlikely, velvet, wry, inland, humble, silver"
    ),
    "did": _list(
        "repaired, weighed, carried, described, painted, copied, measured, sold, lost, sharpened, sketched, buried,"
        " polished, examined, borrowed, hid, returned, labelled, dismantled, photographed, traded, mended, admired,"
        " unpacked, inspected, washed, wrapped, numbered, filled, opened, replaced, balanced, oiled, refused, restored,"
        " drew, catalogued, tested, delivered, kept, misread, turned over, set aside, counted, patched, rebuilt, praised"
    ),
    "way": _list(
        "slowly, without a word, before breakfast, with great care, for the second time, by lamplight, against advice, in"
        " a single afternoon, as the rules require, out of habit, in heavy rain, with borrowed tools, almost by accident,"
        " while the others slept, with one hand, to everyone's surprise, in the old manner, at half the usual price,"
        " after a long argument, under a grey sky, from memory, in the draughty hall, on a bet, without looking up"
    ),
    "reason": _list(
        "the frost had come early, nobody else knew how, the bridge was closed, the figures did not agree, the wind had"
        " turned, a letter had arrived from the north, the contract said so, the spring was dry, the old one leaked, it"
        " was the custom, the lamp had burned out, the train was late again, the wood had warped, the price of copper"
        " had doubled, the children asked for it, a pipe had burst, the almanac advised it, the tide would not wait,"
        " the paint was still wet, somebody had moved the marker, the orchestra needed the room, the seal was broken"
    ),
    "topic": _list(
        "the depth of the channel, last year's harvest, the new timetable, a missing page, the weight of the bell, the"
        " habits of swifts, the colour of the glaze, the cost of coal, the border stones, tuning by ear, the rights of"
        " the millers, a theory of tides, the grain of walnut wood, the water table, the naming of streets, bread without"
        " yeast, the strength of the cables, a comet, the manners of clerks, the drainage of the lower field, the sound"
        " of the pass in winter, how glass remembers heat, the best road to the coast, an unpaid bill, moss on slate"
    ),
    "time": _list(
        "on {day} {year}, towards evening, at {hour}, in the spring of {year}, after the third bell, late in {month},"
        " during the fair, on the first cold morning, about noon, in the week of the floods, long before dawn, between"
        " two trains, on a Thursday, at low water, when the shutters went up, that same night, by the middle of {month}"
    ),
    "month": MONTHS,
    "said": _list("said, wrote, answered, whispered, explained, remarked, insisted, shouted, admitted, replied"),
    "claim": _list(
        "The {thing} is older than the house, You will find the {things} behind {place}, We counted {number} {things} and"
        " then stopped, Nothing {quality} ever came from {place}, It was never about {topic} but about {topic}, I would not trade it for"
        " {number} {things}, A {quality} {thing} needs a {quality} hand, Ask {person} about {topic} and about the {quality} {things}, There were {number}"
        " of them when I began, The trouble is {topic} and not {topic}, Keep the {quality} {thing} dry and it will outlast {person},"
        " Somebody must have {did} it at {hour}, That is what {person} meant by {topic} and by a {quality} {thing}"
    ),
}

SHAPES: list[str] = [
    "{person} {did} the {quality} {thing} {way}.",
    "{time}, {person} {did} {number} {things} at {place}.",
    "There was a {quality} {thing} at {place}, and {person} {did} it because {reason}.",
    "Because {reason}, the {things} stayed at {place} until {day}.",
    "“{claim},” {person} {said}, and {did} the {thing}.",
    "“{claim},” {said} {person}. “{claim}.”",
    "{person} and {person} spoke about {topic} until {hour}.",
    "Of the {number} {things} at {place}, only {number} were {quality}.",
    "The report on {topic}, dated {day} {year}, runs to {number} pages and mentions a {quality} {thing}.",
    "To keep {things} through the winter, choose a {quality} {thing}, fill it with sand, and leave it at {place}.",
    "First the {thing} is {did}, then the {things} follow, {number} at a time.",
    "Nobody at {place} could say who had {did} the {quality} {things}.",
    "If {reason}, one sends for {person}; if not, one waits {number} minutes and looks at the {thing}.",
    "{time}, when {reason}, {person} {did} a {thing} {way}.",
    "The {thing} from {place} was {quality}, the {thing} from {place} was not.",
    "What {person} liked about {place} was the {quality} light on the {things}.",
    "In the minutes of {day} {year} it says that {person} {did} the {thing} and that {topic} was put off.",
    "A {quality} {thing}, a {quality} {thing} and {number} {things}: that was all that {person} {did}.",
    "Entry {number}: wind from the west, {number} {things} at {place}, the {thing} {quality} as before.",
    "Between {place} and {place} lie {number} steps, which {person} {did} {way}.",
    "Did {person} know about {topic}, or was the {thing} only {quality} by chance?",
    "It took {person} {number} days to learn that {reason}.",
    "Whoever walks from {place} to {place} passes a {quality} wall, {number} {things} and sometimes {person}.",
    "The children called it the {quality} {thing}, although it had been {did} {way} {time}.",
    "{person} had a theory of {topic}: a {quality} {thing} does what {number} {things} cannot.",
    "Later, {person} {did} the {things}, {did} the {thing}, and went {way} to {place}.",
    "Once {reason}, nothing at {place} was {quality} any more.",
    "Prices at {place} rose: {number} for a {thing}, {number} for {things}, and twice that if {reason}.",
    "“{claim}?” asked {person} {time}. “{claim},” {said} {person}.",
    "Each of the {things} carries a number; {number} is {quality}, {number} is missing, and {person} has the rest.",
    "You turn the {thing} {number} degrees, wait, and listen whether the {things} move.",
    "The {quality} part of the work begins at {place}, where {person} {did} the {thing} every year since {year}.",
]
