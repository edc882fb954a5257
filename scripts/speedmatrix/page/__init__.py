"""The page: cells, facts and charts → one HTML file that opens from disk without a network."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from speedmatrix import merge, validity
from speedmatrix.cells import size_name
from speedmatrix.page import formats, words

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class PageInput:
    """What the page is made of: health.json by server, SVG texts by name, cells in all."""

    cells: list[dict[str, Any]]
    healths: dict[str, dict[str, Any]]
    charts: dict[str, str]
    planned: int
    title: str | None = None
    author: str | None = None


@dataclass(frozen=True)
class _Section:
    """One server on the page."""

    name: str
    health: dict[str, Any]
    prefill: list[dict[str, Any]]
    decode: list[dict[str, Any]]
    contexts: list[int] = field(default_factory=list)
    concurrency: list[int] = field(default_factory=list)

    def at(self, context: int, concurrency: int) -> list[dict[str, Any]]:
        """The cells of one place in the matrix: one, or one each repeat, those with figures first."""
        here = [c for c in self.decode if (c["context_tokens"], c["concurrency"]) == (context, concurrency)]
        return sorted(here, key=lambda c: c["figures"] is None)


def render(page: PageInput) -> str:
    """The whole HTML page. The same input gives the same bytes: all times come from the cells."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= formats.FILTERS | {"size": size_name}
    sections = [_section(page, name) for name in page.healths]
    return environment.get_template("page.html.j2").render(
        page=page,
        sections=sections,
        title=page.title or words.title(page.healths),
        counts=words.counts(page.cells),
        measured=words.measured_when(page.cells),
        odd=merge.odd_fingerprints(page.cells),
        failed=[cell for cell in page.cells if cell["status"] == "failed"],
        flags=validity.FLAGS,
        style=_inline("style.css"),
        script=_inline("script.js"),
        charts=[(name, words.CHART_CAPTIONS.get(name, name), _svg(svg, name)) for name, svg in page.charts.items()],
        words=words,
    )


def _inline(name: str) -> markupsafe.Markup:
    return markupsafe.Markup((_HERE / name).read_text(encoding="utf-8"))


def _svg(svg: str, name: str) -> markupsafe.Markup:
    """A chart's own SVG, its ids made its own so that several fit on one page, scaling with the page."""
    start = svg[svg.index("<svg") :]
    ids = set(re.findall(r'\bid="([^"]+)"', start))
    for identifier in sorted(ids, key=len, reverse=True):
        start = re.sub(rf'(\bid="|url\(#|href="#){re.escape(identifier)}(?=["\)])', rf"\g<1>{name}-{identifier}", start)
    return markupsafe.Markup(re.sub(r'<svg ([^>]*?)\bwidth="\d+" height="\d+"', r"<svg \1", start, count=1))


def _section(page: PageInput, name: str) -> _Section:
    own = [cell for cell in page.cells if cell["server"] == name]
    decode = [cell for cell in own if cell["phase"] == "decode"]
    return _Section(
        name=name,
        health=page.healths[name],
        prefill=[cell for cell in own if cell["phase"] == "prefill"],
        decode=decode,
        contexts=sorted({cell["context_tokens"] for cell in decode}),
        concurrency=sorted({cell["concurrency"] for cell in decode}),
    )
