"""One text for equal values, and a short name for it. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(value: Any) -> str:
    """JSON of which equal values give equal text."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def digest(value: Any) -> str:
    """12 hex digits that two values share only if they are equal."""
    return hashlib.sha256(canonical(value).encode("utf-8", "backslashreplace")).hexdigest()[:12]
