"""The page: cells, facts and charts → one HTML file that opens from disk without a network; the same in short."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from speedmatrix import findings, formats, matrix, validity
from speedmatrix.cells import size_name
from speedmatrix.matrix import Results
from speedmatrix.page import facts, heat, markdown, pictures, table, words
from speedmatrix.page.glossary import GLOSSARY

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class PageInput:
    """What the page is made of.

    `healths` is health.json by server, `charts` the static pictures (SVG) and `specs` the Vega-Lite specs by name,
    `runtime` the script that draws specs; `planned` counts the config's cells and `config` is it as resolved, in YAML
    and without secrets; `csv` is measurements.csv as it is; `slo` and `prices` (of an hour, by server) are the
    config's.
    """

    cells: list[dict[str, Any]]
    healths: dict[str, dict[str, Any]]
    planned: int
    charts: dict[str, str] = field(default_factory=dict)
    specs: dict[str, str] = field(default_factory=dict)
    runtime: str = ""
    csv: str = ""
    config: str = ""
    title: str | None = None
    author: str | None = None
    slo: dict[str, float] = field(default_factory=dict)
    prices: dict[str, float] = field(default_factory=dict)

    @cached_property
    def servers(self) -> list[Results]:
        """Each server's results, in the config's order."""
        return [
            matrix.results(name, health, self.cells, self.slo, self.prices.get(name))
            for name, health in self.healths.items()
        ]

    @cached_property
    def findings(self) -> dict[str, list[findings.Finding]]:
        """By server, worst first."""
        return {one.name: findings.find(one) for one in self.servers}

    @property
    def headline(self) -> str:
        return self.title or words.title(self.healths)

    @property
    def imported(self) -> int:
        """How many measured cells another tool measured."""
        return sum(bool(cell.get("imported")) for cell in self.cells if cell["figures"])


def render(page: PageInput) -> str:
    """The whole HTML page. The same input gives the same bytes: all times come from the cells."""
    return _environment(autoescape=True).get_template("page.html.j2").render(
        page=page,
        facts=facts,
        heat=heat,
        matrix=matrix,
        table=table,
        words=words,
        flags=validity.FLAGS,
        glossary=GLOSSARY,
        csv_sha256=hashlib.sha256(page.csv.encode()).hexdigest(),
        pictures=[(name, caption, pictures.own_ids(page.charts[name], name)) for name, caption in _captions(page)],
        style=_inline("style.css"),
        script=_inline("script.js"),
        runtime=markupsafe.Markup(page.runtime.replace("</script", "<\\/script")),
        summary=summary(page),
    )  # fmt: skip


def summary(page: PageInput) -> str:
    """The same facts as a short Markdown text for a pull request or a forum."""
    environment = _environment(autoescape=False)
    environment.filters["md"] = markdown.escaped
    text = environment.get_template("report.md.j2").render(
        page=page, facts=facts, words=words, tables=markdown.tables(page.servers)
    )
    return text.rstrip() + "\n"


def _captions(page: PageInput) -> list[tuple[str, str]]:
    return [(name, caption) for name, caption in words.CHART_CAPTIONS.items() if name in page.charts]


def _environment(autoescape: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=autoescape, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= formats.FILTERS | {"size": size_name, "script_json": script_json, "figures_of": _figures_of}
    return environment


def _figures_of(cell: dict[str, Any], prices: dict[str, float]) -> dict[str, Any]:
    return matrix.figures_of(cell, prices.get(cell["server"]))


def script_json(text: str) -> markupsafe.Markup:
    """`text` as a JSON string that can stand inside a script element: nothing in it can end the element."""
    return markupsafe.Markup(json.dumps(text, ensure_ascii=False).replace("</", "<\\/").replace("<!--", "<\\u0021--"))


def _inline(name: str) -> markupsafe.Markup:
    return markupsafe.Markup((_HERE / name).read_text(encoding="utf-8"))
