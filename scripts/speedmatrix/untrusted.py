"""What a server says, made harmless: text in one line, JSON without surprises, numbers within reason. Pure."""

from __future__ import annotations

import json
import math
from typing import Any

MAX_COUNT = 10**15  # tokens, bytes, parameters: more than any server has is a fault of its own, and as good as silence
MAX_MS = 1e9  # eleven days
LINE = 300


def line(text: str, most: int = LINE) -> str:
    """`text` in one line of at most `most` characters: nothing that moves a cursor, hides text or can't be encoded."""
    plain = "".join(c if c.isprintable() else " " for c in text[: 4 * most])
    return " ".join(plain.split())[:most]


def message(said: Any) -> str:
    """A server's words in one line: an error object's own message, or whatever else it said."""
    error = said.get("error", said) if isinstance(said, dict) else said
    words = error.get("message", error) if isinstance(error, dict) else error
    if isinstance(words, bytes):
        words = words[: 8 * LINE].decode("utf-8", "replace")
    try:
        return line(str(words))
    except RecursionError:
        return "something nested too deep"


def loads(data: bytes | str) -> Any:
    """A JSON value; bytes that are no UTF-8 are replaced, NaN and Infinity are None. ValueError where it is no JSON.

    Numbers too large for a float and values nested too deep are no JSON either.
    """
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    try:
        return json.loads(text, parse_constant=lambda _: None, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def count(value: Any, most: int = MAX_COUNT) -> int | None:
    """`value` as a whole number from 0 to `most`; None for anything else: a server that says it says nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not 0 <= value <= most or value != int(value):
        return None
    return int(value)


def positive(value: Any) -> int | None:
    """`value` as a whole number from 1 to MAX_COUNT, else None."""
    return count(value) or None


def ms(value: Any) -> float | None:
    """`value` as milliseconds from 0 to MAX_MS, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MAX_MS else None


def fact(value: Any) -> str | int | None:
    """A fact that a server told: a line, or a count; None for anything else."""
    if isinstance(value, str):
        return line(value) or None
    return str(value).lower() if isinstance(value, bool) else count(value)
