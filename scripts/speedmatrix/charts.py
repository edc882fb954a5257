"""The table → Altair charts, as Vega-Lite specs, SVG and PNG. Pure functions of the table, and one that writes.

Every colour is told apart by shape or place as well, and has a contrast of 3:1 on white and on the page's dark panel,
so that one spec serves both; text, axes and grid are coloured by the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import altair as alt
import pandas as pd
import vl_convert

from speedmatrix import store
from speedmatrix.cells import Cell, size_name

WIDTH, HEIGHT = 520, 320
PANEL_HEIGHT, PANELS_IN_A_ROW = 130, 4
PANEL_WIDTHS = {4: 210, 3: 286, 2: 286, 1: 286}  # by panels in a row; with 20 between them, 4 and 3 are as wide
ACCENT, BEHIND = "#25848e", "#9aa1a8"
CONTEXTS = ["#2f78c4", "#6a69d1", "#9a5cc6", "#bd52a4", "#cc567b", "#cf6352", "#c07530", "#968728"]
SHAPES = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left"]
NOT_RUN = {"over_capacity": "over capacity", "over_context": "over context", "failed": "failed"}
QUALITY = {"valid": "circle", "flagged": "triangle-up", "limited": "square"}
FONT = "system-ui, sans-serif"
_HIDDEN = "#f1f1f1"
alt.data_transformers.disable_max_rows()

Chart = alt.Chart | alt.LayerChart | alt.FacetChart | alt.VConcatChart


def _labelled(rows: pd.DataFrame) -> pd.DataFrame:
    """Plain types for Vega, contexts as `8K`, and repeats of a cell as their median."""
    keys = ["server", "context_tokens", "concurrency"]
    figures = ["total_tok_s", "request_tok_s", "ttft_ms", "itl_ms", "tok_per_j", "power_avg_w"]
    # A repeat that failed says nothing where another one has figures.
    known = rows.groupby(keys)["total_tok_s"].transform("count") > 0
    shown = rows[rows["total_tok_s"].notna() | ~known]
    flagged = (shown["status"] == "valid") & (shown["flags"].fillna("") != "")
    shown = shown.assign(status=shown["status"].mask(flagged, "flagged"))
    how = dict.fromkeys(figures, "median") | {"status": "first"}
    medians = shown.groupby(keys, as_index=False, sort=False).agg(how)
    plain = medians.astype(dict.fromkeys(figures, "float64") | dict.fromkeys(keys[1:], "int64"))
    return plain.astype({"server": object, "status": object}).assign(
        context=[size_name(int(tokens)) for tokens in plain["context_tokens"]]
    )


def _order(rows: pd.DataFrame) -> list[str]:
    return [size_name(int(tokens)) for tokens in sorted(rows["context_tokens"].unique())]


def _concurrency(rows: pd.DataFrame) -> alt.X:
    ticks = sorted(int(lanes) for lanes in rows["concurrency"].unique())
    axis = alt.Axis(values=ticks, format="d", grid=False)
    # A quarter of a doubling on both sides: room for marks, and for the names at the lines' ends.
    scale = alt.Scale(type="log", base=2, nice=False, domain=[ticks[0] / 2**0.25, ticks[-1] * 2**0.5])
    return alt.X("concurrency:Q", title="Requests at once", scale=scale, axis=axis)


def _log_scale(values: pd.Series[float]) -> alt.Scale:
    """A log scale as wide as the values and a little more, where `nice` would widen it to whole powers of ten."""
    return alt.Scale(type="log", nice=False, domain=[float(values.min()) / 1.3, float(values.max()) * 1.3])


TOOLTIP = [
    alt.Tooltip("server:N", title="Server"),
    alt.Tooltip("context:N", title="Context"),
    alt.Tooltip("concurrency:Q", title="Requests at once"),
    alt.Tooltip("status:N", title="Status"),
    alt.Tooltip("total_tok_s:Q", title="Total tok/s", format=",.1f"),
    alt.Tooltip("request_tok_s:Q", title="Per request tok/s", format=",.1f"),
    alt.Tooltip("ttft_ms:Q", title="TTFT (ms)", format=",.0f"),
    alt.Tooltip("itl_ms:Q", title="Time between tokens (ms)", format=",.2f"),
]


def _finished(chart: alt.Chart | alt.LayerChart, rows: pd.DataFrame, title: str) -> Chart:
    """One panel, or with several servers one panel each, titled."""
    sized = chart.properties(width=WIDTH, height=HEIGHT)
    if rows["server"].nunique() > 1:
        header = alt.Header(labelFontSize=13, labelFontWeight="bold", labelAngle=0, labelOrient="top")
        row = alt.Row("server:N", title=None, sort=list(rows["server"].unique()), header=header)
        return sized.facet(row=row).properties(title=title)
    return sized.properties(title=title)


def _nothing(title: str) -> Chart:
    """What a chart shows when nothing was measured for it."""
    note = alt.Chart(pd.DataFrame({"note": ["No data: no cell of this kind has figures."]})).encode(text="note:N")
    chart: Chart = note.mark_text(fontSize=14).properties(width=WIDTH, height=HEIGHT, title=title)
    return chart


def _lines(rows: pd.DataFrame, title: str, x: alt.X, y: alt.Y) -> Chart:
    """A line each context through its cells in order of concurrency, named at its end; a click in the legend picks."""
    order = _order(rows)
    picked = alt.selection_point(name="picked", fields=["context"], bind="legend")
    faded = alt.condition(picked, alt.value(1), alt.value(0.12))
    colours, shapes = ([kinds[n % len(kinds)] for n in range(len(order))] for kinds in (CONTEXTS, SHAPES))
    colour = alt.Color("context:N", title="Context", sort=order, scale=alt.Scale(domain=order, range=colours))
    shape = alt.Shape("context:N", title="Context", sort=order, scale=alt.Scale(domain=order, range=shapes))
    last = rows.groupby(["server", "context"])["concurrency"].transform("max") == rows["concurrency"]
    base = alt.Chart(rows.assign(last=last)).encode(x=x, y=y, color=colour, opacity=faded)
    lines = base.mark_line(strokeWidth=2).encode(order="concurrency:Q")
    points = base.mark_point(size=60, filled=True).encode(shape=shape, tooltip=TOOLTIP).add_params(picked)
    ends = base.transform_filter("datum.last")
    names = ends.mark_text(align="left", dx=8, fontSize=11).encode(text="context:N")
    return _finished(lines + points + names, rows, title)


def _columns(panels: int) -> int:
    """How many panels a row holds where as few rows as can be are filled as evenly as can be: 3 and 3, not 4 and 2."""
    rows = -(-panels // PANELS_IN_A_ROW)
    return -(-panels // rows)


def _panels(rows: pd.DataFrame, title: str, x: alt.X, y: alt.Y) -> alt.FacetChart:
    """A panel each context (and server), its line before the grey ones of the other contexts."""
    several = rows["server"].nunique() > 1
    rows = rows.assign(panel=rows["server"] + " · " + rows["context"] if several else rows["context"])
    servers = list(rows["server"].unique())
    placed = rows.drop_duplicates("panel").sort_values("context_tokens", kind="stable")
    placed = placed.sort_values("server", key=lambda names: names.map(servers.index), kind="stable")
    panels = list(placed["panel"])
    server_of = dict(zip(placed["panel"], placed["server"], strict=True))
    parts = [
        rows[rows["server"] == server_of[panel]].assign(own=rows["panel"] == panel, panel=panel) for panel in panels
    ]
    base = alt.Chart(pd.concat(parts)).encode(x=x, y=y, order="concurrency:Q")
    others = base.transform_filter("!datum.own").mark_line(strokeWidth=1, color=BEHIND, opacity=0.7)
    own = base.transform_filter("datum.own")
    line = own.mark_line(strokeWidth=2.5, color=ACCENT)
    points = own.mark_point(size=55, filled=True, color=ACCENT, opacity=1).encode(shape=_quality(rows), tooltip=TOOLTIP)
    layers = others.encode(detail="context:N") + line + points
    if "concurrency" not in str(x.shorthand):  # else nothing says how many requests a point is of
        layers += own.mark_text(dy=-10, fontSize=10).encode(text="concurrency:Q")
    columns = _columns(len(panels))
    width = PANEL_WIDTHS[columns]
    sized = layers.properties(width=width, height=PANEL_HEIGHT)
    header = alt.Header(labelFontSize=13, labelFontWeight="bold", labelLimit=width)
    facet = alt.Facet("panel:N", title=None, sort=panels, header=header)
    chart: alt.FacetChart = sized.facet(facet=facet, columns=columns).properties(title=title)
    return chart


def total_tok_s(rows: pd.DataFrame, title: str) -> Chart:
    """Total tok/s over concurrency: a panel each context, with the other contexts' lines behind it."""
    return _panels(rows, title, _concurrency(rows), _total())


def _total() -> alt.Y:
    return alt.Y("total_tok_s:Q", title="Total output (tok/s)", scale=alt.Scale(zero=True))


def _quality(rows: pd.DataFrame) -> alt.Shape:
    """A mark's shape by its cell's status; explained where any is not simply valid."""
    occurring = {status: shape for status, shape in QUALITY.items() if status in set(rows["status"])}
    legend = alt.Legend(title="Cell") if set(occurring) != {"valid"} else None
    scale = alt.Scale(domain=list(occurring), range=list(occurring.values()))
    return alt.Shape("status:N", scale=scale, legend=legend)


def request_vs_total(rows: pd.DataFrame, title: str) -> Chart:
    """Per-request against total tok/s: what more lanes give to the server and take from each reader."""
    scale, axis = _log_scale(rows["request_tok_s"]), alt.Axis(format="~g", grid=False)
    each = alt.X("request_tok_s:Q", title="Per request (tok/s, log scale)", scale=scale, axis=axis)
    return _panels(rows, title, each, _total())


def ttft(rows: pd.DataFrame, title: str) -> Chart:
    """TTFT over concurrency on log axes, a line each context."""
    scale, axis = _log_scale(rows["ttft_ms"]), alt.Axis(format=",d")
    waited = alt.Y("ttft_ms:Q", title="Median TTFT (ms, log scale)", scale=scale, axis=axis)
    return _lines(rows, title, _concurrency(rows), waited)


def prefill(rows: pd.DataFrame, title: str) -> Chart:
    """Prefill tok/s over context."""
    base = alt.Chart(rows).encode(
        x=alt.X("context:O", title="Context (tokens)", sort=_order(rows), axis=alt.Axis(labelAngle=0)),
        y=alt.Y("total_tok_s:Q", title="Prefill (prompt tok/s)", scale=alt.Scale(zero=True)),
        tooltip=[
            t for t in TOOLTIP if t.shorthand.partition(":")[0] in ("server", "context", "total_tok_s", "ttft_ms")
        ],
    )
    bars = base.mark_bar(color=ACCENT, cornerRadiusTopLeft=2, cornerRadiusTopRight=2)
    values = base.mark_text(dy=-8, fontSize=12).encode(text=alt.Text("total_tok_s:Q", format=",.0f"))
    return _finished(bars + values, rows, title)


def matrix(rows: pd.DataFrame, title: str) -> Chart:
    """Contexts × concurrency as a heat map of total tok/s, for slides; a cell that was not run says why."""
    words = rows["status"].map(NOT_RUN).fillna("no figure").where(rows["total_tok_s"].isna(), "")
    rows = rows.assign(word=words)
    base = alt.Chart(rows).encode(
        x=alt.X("concurrency:O", title="Requests at once", axis=alt.Axis(labelAngle=0, orient="top")),
        y=alt.Y("context:O", title="Context (tokens)", sort=_order(rows)),
        tooltip=TOOLTIP,
    )
    known = rows.loc[rows["total_tok_s"] > 0, "total_tok_s"]
    low, high = (float(known.min()), float(known.max())) if len(known) else (1.0, 10.0)
    colour = alt.Color(
        "total_tok_s:Q",
        title="tok/s",
        legend=alt.Legend(format=",.0f"),
        scale=alt.Scale(type="log", scheme="viridis", domain=[low, max(high, low * 1.01)], clamp=True),
    )
    run = base.transform_filter("datum.word == ''").mark_rect(stroke="white").encode(color=colour)
    not_run = base.transform_filter("datum.word != ''").mark_rect(fill=_HIDDEN, stroke="white")
    # At 0.43 of the way through viridis white ink has 4.6:1 and black has too: it changes there.
    change = low * (high / low) ** 0.43
    ink = alt.condition(f"datum.total_tok_s > {change}", alt.value("black"), alt.value("white"))
    numbers = base.transform_filter("datum.word == ''").mark_text(fontSize=13)
    numbers = numbers.encode(text=alt.Text("total_tok_s:Q", format=",.0f"), color=ink)
    reasons = base.transform_filter("datum.word != ''").mark_text(fontSize=10, color="#555").encode(text="word:N")
    return _finished(run + not_run + numbers + reasons, rows, title)


def tokens_per_joule(rows: pd.DataFrame, title: str) -> Chart:
    """Output tokens by energy over concurrency, a line each context."""
    worth = alt.Y("tok_per_j:Q", title="Output tokens per joule", scale=alt.Scale(zero=True))
    return _lines(rows, title, _concurrency(rows), worth)


def power(rows: pd.DataFrame, title: str) -> Chart:
    """Power and SM clock of each device over one cell: readings in the order of time, the window from 0 s on."""
    quantities = {"power_w": "Power (W)", "sm_clock_mhz": "SM clock (MHz)"}
    panels = [_over_time(rows, name, label) for name, label in quantities.items() if rows[name].notna().any()]
    chart: Chart = alt.vconcat(*panels).properties(title=f"{title}, {rows['cell'].iloc[0]}")
    return chart


def _over_time(rows: pd.DataFrame, name: str, label: str) -> alt.Chart:
    base = alt.Chart(rows[["t_s", "device", name]].dropna()).encode(
        x=alt.X("t_s:Q", title="Seconds from the window's start"),
        y=alt.Y(f"{name}:Q", title=label, scale=alt.Scale(zero=False)),
        color=alt.Color("device:N", title="Device", scale=alt.Scale(range=CONTEXTS)),
        tooltip=["device:N", alt.Tooltip("t_s:Q", format=".1f"), alt.Tooltip(f"{name}:Q", format=",.0f")],
    )
    lines: alt.Chart = base.mark_line(strokeWidth=1.5).properties(width=WIDTH, height=HEIGHT // 2)
    return lines


@dataclass(frozen=True)
class Data:
    """What charts are made of: the table of all cells, and the telemetry of one of them, if there is any."""

    table: pd.DataFrame
    series: pd.DataFrame

    def cells(self, phase: str, figure: str | None) -> pd.DataFrame:
        """The cells of the phase, those with the figure where one is named."""
        rows = _labelled(self.table[self.table["phase"] == phase])
        return rows[rows[figure] > 0] if figure else rows


NO_SERIES = pd.DataFrame({"t_s": [], "device": [], "power_w": [], "sm_clock_mhz": [], "cell": []})


def data(table: pd.DataFrame, cells: Path) -> Data:
    """The table, with the telemetry that lies below `cells` of the fastest decode cell that has any of power."""
    known = table[(table["phase"] == "decode") & table["power_avg_w"].notna()]
    keys = ["server", "context_tokens", "concurrency", "repeat"]
    for server, context, lanes, repeat in known.sort_values("total_tok_s", ascending=False)[keys].to_numpy():
        cell = Cell(str(server), "decode", int(context), int(lanes), int(repeat))
        path = cells / cell.server / f"{cell.name}.telemetry.csv"
        if path.exists():
            named = f"{cell.server} {cell.label}"
            return Data(table, pd.read_csv(path).dropna(subset=["power_w"]).assign(cell=named))
    return Data(table, NO_SERIES)


@dataclass(frozen=True)
class Kind:
    """A chart: its title, which rows it is of, and what draws it."""

    title: str
    select: Callable[[Data], pd.DataFrame]
    drawn_by: Callable[[pd.DataFrame, str], Chart]

    def draw(self, given: Data) -> Chart:
        """The chart; it says so where there is no data for it."""
        rows = self.select(given)
        chart = _nothing(self.title) if rows.empty else self.drawn_by(rows, self.title)
        chart.description = self.title
        return chart

    def has_data(self, given: Data) -> bool:
        """Whether there is anything to draw."""
        return not self.select(given).empty


def _of(phase: str, figure: str | None) -> Callable[[Data], pd.DataFrame]:
    return lambda given: given.cells(phase, figure)


CHARTS = {
    "total-tok-s": Kind("Sustained decode: total output speed by context", _of("decode", "total_tok_s"), total_tok_s),
    "matrix": Kind("Total tok/s by context and concurrency", _of("decode", None), matrix),
    "request-vs-total": Kind(
        "What each request gets against what all get together", _of("decode", "request_tok_s"), request_vs_total
    ),
    "ttft": Kind("Time to first token, all requests starting at once", _of("decode", "ttft_ms"), ttft),
    "prefill": Kind("Prefill speed by context length", _of("prefill", "total_tok_s"), prefill),
    "tokens-per-joule": Kind("What a joule yields", _of("decode", "tok_per_j"), tokens_per_joule),
    "power": Kind("Power and clocks over a cell", lambda given: given.series, power),
}


def spec(chart: Chart) -> str:
    """The chart as Vega-Lite JSON."""
    looks = chart.configure(font=FONT, background="white").configure_axis(
        labelFontSize=12, titleFontSize=13, titleFontWeight="normal",
        gridColor="#e7e4dd", domainColor="#8a9097", tickColor="#8a9097",
    )  # fmt: skip
    looks = looks.configure_title(fontSize=16, anchor="start", offset=12).configure_view(stroke=None)
    return str(looks.configure_legend(labelFontSize=12, titleFontSize=12, symbolOpacity=1).to_json(indent=None))


def svg(chart: Chart) -> str:
    """The chart as SVG text; the same chart gives the same text."""
    drawn = str(vl_convert.vegalite_to_svg(spec(chart)))
    # The renderer numbers its clips and gradients through the process's life: number them through the chart.
    own = {name: f"part{n}" for n, name in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]+)"', drawn)))}
    return re.sub(r'(\bid="|url\(#|href="#)([^")]+)', lambda m: m[1] + own.get(m[2], m[2]), drawn)


def pictures(given: Data, written: Path | None = None) -> tuple[dict[str, str], dict[str, str]]:
    """(SVGs, specs) by name of the charts that have data; as they were `written`, or drawn where they were not."""
    names = [name for name, kind in CHARTS.items() if kind.has_data(given)]
    if written is not None:
        svgs, specs = ({n: (written / f"{n}.{kind}").read_text("utf-8") for n in names} for kind in ("svg", "json"))
        return svgs, specs
    drawn = {name: CHARTS[name].draw(given) for name in names}
    return {name: svg(chart) for name, chart in drawn.items()}, {name: spec(chart) for name, chart in drawn.items()}


def runtime() -> str:
    """The script that draws specs in a browser: Vega, Vega-Lite and Vega-Embed, as one text."""
    return str(vl_convert.javascript_bundle())  # type: ignore[call-arg]  # its stub lacks the default


def write(chart: Chart, directory: Path, name: str) -> None:
    """Write `<name>.json` (Vega-Lite), `.svg` and `.png` (twice the size), each atomically."""
    store.write_text(directory / f"{name}.json", spec(chart) + "\n")
    store.write_text(directory / f"{name}.svg", svg(chart))
    store.write_bytes(directory / f"{name}.png", vl_convert.vegalite_to_png(spec(chart), scale=2))
