"""The columns of the table of all measurements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speedmatrix import formats

Column = tuple[str, str, Callable[[Any], str], bool]  # heading, figure, how it looks, whether it is a number
COLUMNS: list[Column] = [
    ("Total tok/s", "total_tok_s", formats.speed, True),
    ("Per request tok/s", "request_tok_s", formats.speed, True),
    ("TTFT", "ttft_ms", formats.ms, True),
    ("TTFT kind", "ttft_kind", formats.fact, False),
    ("Time between tokens", "itl_ms", formats.fine_ms, True),
    ("Average active requests", "active_avg", formats.decimal, True),
    ("Completed requests", "completed", formats.count, True),
    ("Output tokens", "output_tokens", formats.count, True),
    ("Measured for", "measured_s", formats.seconds, True),
]
WHERE_TOLD: list[Column] = [
    ("Time between tokens, 99th percentile", "itl_p99_ms", formats.fine_ms, True),
    ("Prompt tokens", "prompt_tokens", formats.count, True),
    ("Server's own count", "server_tok_s", formats.speed, True),
    ("Mean power", "power_avg_w", formats.watts, True),
    ("Energy", "energy_j", formats.joules, True),
    ("Tokens per joule", "tok_per_j", formats.small, True),
    ("Hottest GPU", "gpu_temp_max_c", formats.celsius, True),
    ("Slowed down by", "throttle", formats.fact, False),
    ("Price per million tokens", "price_per_mtok", formats.small, True),
]


def columns(rows: list[dict[str, Any]]) -> list[Column]:
    """COLUMNS, and of those WHERE_TOLD the ones that any row of figures says something in."""
    return COLUMNS + [one for one in WHERE_TOLD if any(figures.get(one[1]) not in _NOTHING for figures in rows)]


_NOTHING = (None, "no data")
