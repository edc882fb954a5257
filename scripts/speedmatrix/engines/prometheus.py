"""What a server's /metrics says. Pure."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

MAX_CHARACTERS = 8 * 2**20  # samples take many times the memory of their text
MAX_VALUE = 1e18


def samples(text: str) -> list[Sample]:
    """All samples that are within reason; none where `text` is something else than metrics, or too much of it."""
    try:
        families = list(text_string_to_metric_families(text)) if len(text) <= MAX_CHARACTERS else []
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []  # the parser raises whatever its own code runs into
    return [sample for family in families for sample in family.samples if 0 <= sample.value <= MAX_VALUE]
