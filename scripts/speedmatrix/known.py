"""Secrets that are known by value, hidden in every form in which a server or a cut-off line may repeat them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from functools import cache
from urllib.parse import quote, quote_plus

MARK = "<redacted>"
SHORTEST = 4  # a shorter value can't be told from a word
PART = 10  # characters in a row that a text has in common with a longer value

_PLACE = re.compile(r"[/~]|[a-z][a-z0-9+.-]*://", re.I)
_known: set[str] = set()


def know(secrets: Iterable[str]) -> None:
    """From now on hide these values too, in everything that this process stores or shows."""
    _known.update(secrets)


def hide(text: str, more: Iterable[str] = ()) -> str:
    """`text` without the known values and `more`: as they are, quoted for JSON or a URL, or in Base64."""
    for secret in _all(more):
        for form in _forms(secret):
            text = text.replace(form, MARK)
    return text


def hide_parts(text: str, more: Iterable[str] = ()) -> str:
    """`text` without longer parts of those values either; for what comes from outside, where words are cut off."""
    for secret in _all(more):
        text = _without_parts(text, secret)
    return text


def _all(more: Iterable[str]) -> list[str]:
    """The longest first: one may hold another."""
    return sorted((secret for secret in {*more, *_known} if len(secret) >= SHORTEST), key=len, reverse=True)


@cache
def _forms(secret: str) -> dict[str, None]:
    quoted = [json.dumps(secret)[1:-1], quote(secret), quote(secret, safe=""), quote_plus(secret)]
    return dict.fromkeys([secret, *quoted, *_base64(secret)])


def _base64(secret: str) -> list[str]:
    """What Base64 makes of the value wherever it begins in what is encoded, less the characters that depend on that."""
    raw = secret.encode("utf-8", "surrogateescape")
    cores = []
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw).decode().rstrip("=")
        core = encoded[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]
        cores += [core, core.replace("+", "-").replace("/", "_")]
    return [core for core in cores if len(core) >= PART]


def _without_parts(text: str, secret: str) -> str:
    windows = _windows(secret)
    if not any(window in text for window in windows):
        return text
    places = sorted(place for window in windows for place in _places(window, text))
    parts: list[str] = []
    end = 0
    for place in places:
        if place > end or not parts:
            parts += [text[end:place], MARK]
        end = max(end, place + PART)
    return "".join(parts) + text[end:]


@cache
def _windows(secret: str) -> frozenset[str]:
    """All parts of the least length; none of a path or an address, which others begin with, too."""
    if _PLACE.match(secret):
        return frozenset()
    return frozenset(secret[i : i + PART] for i in range(len(secret) - PART + 1))


def _places(window: str, text: str) -> list[int]:
    return [found.start() for found in re.finditer(f"(?={re.escape(window)})", text)]
