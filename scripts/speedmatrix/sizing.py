"""Text of a given number of tokens, for servers that take no ids; by few counts, as each may be a whole prefill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

CLOSE_ENOUGH = 0.001  # of the wanted tokens; five times closer than what is flagged
_MOST_COUNTS = 12
_SAMPLE_CHARACTERS = 2000

# characters of body text → prompt tokens of the whole request
Count = Callable[[int], int]


@dataclass(frozen=True)
class Sized:
    """How many characters of text give how many prompt tokens."""

    characters: int
    tokens: int


class SizeError(Exception):
    """No text has that many tokens; the message is one line."""


def fit(wanted: int, count: Count) -> Sized:
    """The number of characters whose prompt comes nearest to `wanted` tokens from below. Raises SizeError.

    What a request has without any text (a chat template's tokens) is counted first and kept apart: the line through
    it and a sample gives tokens a character, and interpolation between the nearest two counts goes on from there. Never
    more than wanted, since the model's limit may be right behind it.
    """
    seen = {n: count(n) for n in (0, _SAMPLE_CHARACTERS)}
    if seen[0] > wanted:
        raise SizeError(f"a prompt of {wanted} tokens can't be made: the server adds {seen[0]} of its own")
    while len(seen) < _MOST_COUNTS:
        best = _nearest(seen, wanted)
        if wanted - best.tokens <= CLOSE_ENOUGH * wanted:
            return best
        guess = _between(seen, wanted)
        if guess is None:
            return best
        seen[guess] = count(guess)
    return _nearest(seen, wanted)


def _nearest(seen: dict[int, int], wanted: int) -> Sized:
    characters = max((n for n in seen if seen[n] <= wanted), key=lambda n: (seen[n], -n))
    return Sized(characters, seen[characters])


def _between(seen: dict[int, int], wanted: int) -> int | None:
    """Where the line through the nearest counts around `wanted` (or the last two) reaches it; None: nowhere new."""
    below = [n for n in seen if seen[n] <= wanted]
    above = [n for n in seen if seen[n] > wanted]
    if above:
        low, high = max(below), min(above)
        if high - low <= 1:
            return None
    else:
        low, high = sorted(below)[-2:]
    rise = seen[high] - seen[low]
    if rise <= 0:
        raise SizeError("the server counts no more tokens for a longer prompt")
    guess = low + round((wanted - seen[low]) * (high - low) / rise)
    return min(max(guess, low + 1), high - 1) if above else max(guess, high + 1)
