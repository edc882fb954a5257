"""The figures as Markdown tables, for forums and pull requests."""

from __future__ import annotations

import re
from collections.abc import Iterable

from speedmatrix.cells import size_name
from speedmatrix.formats import ms, speed
from speedmatrix.matrix import Place, Results
from speedmatrix.page import words


def escaped(text: object) -> str:
    """`text` as text: nothing in it is Markdown, HTML or the end of a table's cell."""
    plain = re.sub(r"\s+", " ", str(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", plain)


def tables(servers: list[Results]) -> str:
    """Decode matrix and prefill of each server, with its name where there are several."""
    parts = []
    for results in servers:
        own = [*_decode(results), *_prefill(results)]
        parts += [f"**{escaped(results.name)}**", *own] if len(servers) > 1 else own
    return "\n\n".join(parts)


def _decode(results: Results) -> list[str]:
    if not results.decode:
        return []
    head = ["context", *map(str, results.concurrency)]
    rows = [
        [size_name(context), *(_decode_cell(results.at(context, lanes)) for lanes in results.concurrency)]
        for context in results.contexts
    ]
    return ["Sustained decode, total tok/s (TTFT) by context and requests at once:", _table(head, rows)]


def _decode_cell(place: Place | None) -> str:
    if place is None:
        return ""
    word = words.STATUS[place.status][1].lower()
    if not place.figures:
        return word
    marked = f" {word}" if place.status != "valid" else ""
    return f"{speed(place.get('total_tok_s'))} ({ms(place.get('ttft_ms'))}){marked}"


def _prefill(results: Results) -> list[str]:
    if not results.prefill:
        return []
    rows = [_prefill_row(place) for place in results.prefill]
    return ["Prefill, one request at a time:", _table(["context", "prompt tok/s", "TTFT"], rows)]


def _prefill_row(place: Place) -> list[str]:
    context = size_name(place.context)
    if not place.figures:
        return [context, words.STATUS[place.status][1].lower(), ""]
    return [context, speed(place.get("total_tok_s")), ms(place.get("ttft_ms"))]


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
