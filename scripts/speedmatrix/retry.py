"""How long a busy server is waited for, before anything is measured. Pure."""

from __future__ import annotations

BUSY = (429, 503)
PATIENCE_S = 120.0
_DEFAULT_S, _LONGEST_S = 2.0, 30.0


def after_s(header: str | None) -> float:
    """Seconds until the next try, by the answer's Retry-After where that is a number of seconds."""
    told = (header or "").strip()
    return min(float(told), _LONGEST_S) if told.isascii() and told.isdigit() else _DEFAULT_S
