"""Text of a given number of tokens, for servers that take no ids; by few counts, as each may be a whole prefill."""

from __future__ import annotations

from collections.abc import Callable

CLOSE_ENOUGH = 0.001  # of the wanted tokens; five times closer than what is flagged
_MOST_COUNTS = 12
_SAMPLE_CHARACTERS = 2000

# characters of text → prompt tokens of the whole request
Count = Callable[[int], int]


class SizeError(Exception):
    """No text has that many tokens; the message is one line."""


def fit(wanted: int, count: Count, least: int = 0) -> int:
    """The number of characters whose prompt comes nearest to `wanted` tokens from below. Raises SizeError.

    What a request has with the `least` text (a chat template's tokens) is counted first and kept apart: the line
    through it and a sample gives tokens a character, and interpolation between the nearest two counts goes on from
    there. Never more than wanted, since the model's limit may be right behind it.
    """
    seen = {n: count(n) for n in (least, least + _SAMPLE_CHARACTERS)}
    if seen[least] > wanted:
        raise SizeError(f"a prompt of {wanted} tokens can't be made: the shortest has {seen[least]} at this server")
    while len(seen) < _MOST_COUNTS:
        best = _nearest(seen, wanted)
        if wanted - seen[best] <= CLOSE_ENOUGH * wanted:
            return best
        guess = _between(seen, wanted)
        if guess is None:
            return best
        seen[guess] = count(guess)
    return _nearest(seen, wanted)


def _nearest(seen: dict[int, int], wanted: int) -> int:
    return max((n for n in seen if seen[n] <= wanted), key=lambda n: (seen[n], -n))


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
