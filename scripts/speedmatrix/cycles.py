"""Whether a text goes round in circles. Pure."""

from __future__ import annotations


def share(text: str) -> float:
    """The part of `text`, counted from its end, that is one exact cycle said three times or more: 0 to 1."""
    backwards, longest = text[::-1], 0
    borders = [0] * len(text)  # Knuth, Morris, Pratt: the longest border of each beginning tells its shortest period
    for i in range(1, len(backwards)):
        k = borders[i - 1]
        while k and backwards[i] != backwards[k]:
            k = borders[k - 1]
        borders[i] = k + (backwards[i] == backwards[k])
        length = i + 1
        if length >= 3 * (length - borders[i]):
            longest = length
    return longest / len(text) if text else 0.0
