"""The table → Altair charts, as Vega-Lite specs, SVG and PNG. Pure functions of the table, and one that writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import altair as alt
import pandas as pd
import vl_convert

from speedmatrix import store
from speedmatrix.cells import size_name

WIDTH, HEIGHT = 560, 340
PALETTE: Literal["viridis"] = "viridis"
NOT_RUN = {"over_capacity": "over capacity", "over_context": "over context", "failed": "failed"}
_HIDDEN = "#f1f1f1"
alt.data_transformers.disable_max_rows()


def _measured(table: pd.DataFrame, phase: str) -> pd.DataFrame:
    """Rows of the phase that have figures, with the labels the charts use."""
    rows = table[(table["phase"] == phase) & table["total_tok_s"].notna()]
    return _labelled(rows)


def _labelled(rows: pd.DataFrame) -> pd.DataFrame:
    """Plain types for Vega, contexts as `8K`, and repeats of a cell as their median."""
    keys = ["server", "context_tokens", "concurrency"]
    figures = ["total_tok_s", "request_tok_s", "ttft_ms", "itl_ms"]
    # A repeat that failed says nothing where another one has figures.
    known = rows.groupby(keys)["total_tok_s"].transform("count") > 0
    shown = rows[rows["total_tok_s"].notna() | ~known]
    how = dict.fromkeys(figures, "median") | {"status": "first"}
    medians = shown.groupby(keys, as_index=False, sort=False).agg(how)
    plain = medians.astype(dict.fromkeys(figures, "float64") | dict.fromkeys(keys[1:], "int64"))
    return plain.astype({"server": object, "status": object}).assign(
        context=[size_name(int(tokens)) for tokens in plain["context_tokens"]]
    )


def _order(rows: pd.DataFrame) -> list[str]:
    return [size_name(int(tokens)) for tokens in sorted(rows["context_tokens"].unique())]


def _context_colour(rows: pd.DataFrame) -> alt.Color:
    # The palette's yellow end is too pale for a thin line on white.
    palette = alt.SchemeParams(name=PALETTE, extent=[0.9, 0])
    scale = alt.Scale(scheme=palette, domain=_order(rows))
    return alt.Color("context:O", title="Context (tokens)", scale=scale)


def _concurrency(rows: pd.DataFrame) -> alt.X:
    ticks = sorted(int(lanes) for lanes in rows["concurrency"].unique())
    axis = alt.Axis(values=ticks, format="d")
    return alt.X("concurrency:Q", title="Requests at once", scale=alt.Scale(type="log", base=2, nice=False), axis=axis)


def _log_scale(values: pd.Series[float]) -> alt.Scale:
    """A log scale as wide as the values and a little more, where `nice` would widen it to whole powers of ten."""
    return alt.Scale(type="log", nice=False, domain=[float(values.min()) / 1.3, float(values.max()) * 1.3])


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("server:N", title="Server"),
        alt.Tooltip("context:N", title="Context"),
        alt.Tooltip("concurrency:Q", title="Requests at once"),
        alt.Tooltip("total_tok_s:Q", title="Total tok/s", format=",.1f"),
        alt.Tooltip("request_tok_s:Q", title="Per request tok/s", format=",.1f"),
        alt.Tooltip("ttft_ms:Q", title="TTFT (ms)", format=",.0f"),
        alt.Tooltip("itl_ms:Q", title="Time between tokens (ms)", format=",.2f"),
    ]


def _finished(chart: alt.Chart, rows: pd.DataFrame, title: str) -> alt.Chart | alt.FacetChart:
    """One panel, or with several servers one panel each, titled."""
    sized = chart.properties(width=WIDTH, height=HEIGHT)
    if rows["server"].nunique() > 1:
        return sized.facet(row=alt.Row("server:N", title=None, sort=list(rows["server"].unique()))).properties(
            title=title
        )
    return sized.properties(title=title)


def _nothing(title: str) -> alt.Chart:
    """What a chart shows when nothing was measured for it."""
    note = alt.Chart(pd.DataFrame({"note": ["No data: no cell of this kind has figures."]})).encode(text="note:N")
    chart: alt.Chart = note.mark_text(fontSize=14, color="#666").properties(width=WIDTH, height=HEIGHT, title=title)
    return chart


def _lines(rows: pd.DataFrame, title: str, x: alt.X, y: alt.Y) -> alt.Chart | alt.FacetChart:
    """A line each context through its cells in order of concurrency."""
    lines = alt.Chart(rows).mark_line(point=alt.OverlayMarkDef(size=50, filled=True), strokeWidth=2)
    chart = lines.encode(x=x, y=y, order="concurrency:Q", color=_context_colour(rows), tooltip=_tooltip())
    return _finished(chart, rows, title)


def _total_axis() -> alt.Y:
    return alt.Y("total_tok_s:Q", title="Total output (tok/s)", scale=alt.Scale(zero=True))


def total_tok_s(table: pd.DataFrame) -> alt.Chart | alt.FacetChart:
    """Total tok/s over concurrency, a line each context."""
    title = "Sustained decode: total output speed"
    rows = _measured(table, "decode")
    return _nothing(title) if rows.empty else _lines(rows, title, _concurrency(rows), _total_axis())


def request_vs_total(table: pd.DataFrame) -> alt.Chart | alt.FacetChart:
    """Per-request against total tok/s: what more lanes give to the server and take from each reader."""
    title = "What each request gets against what all get together"
    rows = _measured(table, "decode")
    rows = rows[rows["request_tok_s"] > 0]
    if rows.empty:
        return _nothing(title)
    each = alt.X("request_tok_s:Q", title="Per request (tok/s)", scale=_log_scale(rows["request_tok_s"]))
    return _lines(rows, title, each, _total_axis())


def ttft(table: pd.DataFrame) -> alt.Chart | alt.FacetChart:
    """TTFT over concurrency on a log axis, a line each context."""
    title = "Time to first token, all requests starting at once"
    rows = _measured(table, "decode")
    rows = rows[rows["ttft_ms"] > 0]
    if rows.empty:
        return _nothing(title)
    scale, axis = _log_scale(rows["ttft_ms"]), alt.Axis(format=",d")
    waited = alt.Y("ttft_ms:Q", title="Median TTFT (ms, log scale)", scale=scale, axis=axis)
    return _lines(rows, title, _concurrency(rows), waited)


def prefill(table: pd.DataFrame) -> alt.Chart | alt.FacetChart:
    """Prefill tok/s over context."""
    title = "Prefill speed by context length"
    rows = _measured(table, "prefill")
    if rows.empty:
        return _nothing(title)
    base = alt.Chart(rows).encode(
        x=alt.X("context:O", title="Context (tokens)", sort=_order(rows), axis=alt.Axis(labelAngle=0)),
        y=alt.Y("total_tok_s:Q", title="Prefill (prompt tok/s)", scale=alt.Scale(zero=True)),
        tooltip=[
            t for t in _tooltip() if t.shorthand.partition(":")[0] in ("server", "context", "total_tok_s", "ttft_ms")
        ],
    )
    bars = base.mark_bar(color="#2a788e", cornerRadiusTopLeft=2, cornerRadiusTopRight=2)
    values = base.mark_text(dy=-8, fontSize=12).encode(text=alt.Text("total_tok_s:Q", format=",.0f"))
    return _finished(bars + values, rows, title)


def matrix(table: pd.DataFrame) -> alt.Chart | alt.FacetChart:
    """Contexts × concurrency as a heat map of total tok/s; a cell that was not run says why."""
    title = "Total tok/s by context and concurrency"
    rows = table[table["phase"] == "decode"]
    if rows.empty:
        return _nothing(title)
    rows = _labelled(rows)
    rows["word"] = rows["status"].map(NOT_RUN).fillna("no figure").where(rows["total_tok_s"].isna(), "")
    base = alt.Chart(rows).encode(
        x=alt.X("concurrency:O", title="Requests at once", axis=alt.Axis(labelAngle=0, orient="top")),
        y=alt.Y("context:O", title="Context (tokens)", sort=_order(rows)),
        tooltip=_tooltip(),
    )
    known = rows.loc[rows["total_tok_s"] > 0, "total_tok_s"]
    low, high = (float(known.min()), float(known.max())) if len(known) else (1.0, 10.0)
    colour = alt.Color(
        "total_tok_s:Q",
        title="tok/s",
        legend=alt.Legend(format=",.0f"),
        scale=alt.Scale(type="log", scheme=PALETTE, domain=[low, max(high, low * 1.01)], clamp=True),
    )
    run = base.transform_filter("datum.word == ''").mark_rect(stroke="white").encode(color=colour)
    not_run = base.transform_filter("datum.word != ''").mark_rect(fill=_HIDDEN, stroke="white")
    # At 0.43 of the way through viridis white ink has 4.6:1 and black has too: it changes there.
    change = low * (high / low) ** 0.43
    ink = alt.condition(f"datum.total_tok_s > {change}", alt.value("black"), alt.value("white"))
    numbers = base.transform_filter("datum.word == ''").mark_text(fontSize=13)
    numbers = numbers.encode(text=alt.Text("total_tok_s:Q", format=",.0f"), color=ink)
    words = base.transform_filter("datum.word != ''").mark_text(fontSize=10, color="#555").encode(text="word:N")
    return _finished(run + not_run + numbers + words, rows, title)


CHARTS: dict[str, Callable[[pd.DataFrame], alt.Chart | alt.FacetChart]] = {
    "total-tok-s": total_tok_s,
    "matrix": matrix,
    "request-vs-total": request_vs_total,
    "ttft": ttft,
    "prefill": prefill,
}


def _spec(chart: alt.Chart | alt.FacetChart) -> str:
    return str(
        chart.configure_axis(labelFontSize=12, titleFontSize=13).configure_title(fontSize=16, anchor="start").to_json()
    )


def svg(chart: alt.Chart | alt.FacetChart) -> str:
    """The chart as SVG text; the same chart gives the same text."""
    drawn = str(vl_convert.vegalite_to_svg(_spec(chart)))
    # The renderer numbers its clips and gradients through the process's life: number them through the chart.
    own = {name: f"part{n}" for n, name in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]+)"', drawn)))}
    return re.sub(r'(\bid="|url\(#|href="#)([^")]+)', lambda m: m[1] + own.get(m[2], m[2]), drawn)


def write(chart: alt.Chart | alt.FacetChart, directory: Path, name: str) -> None:
    """Write `<name>.json` (Vega-Lite), `.svg` and `.png` (twice the size), each atomically."""
    store.write_text(directory / f"{name}.json", _spec(chart) + "\n")
    store.write_text(directory / f"{name}.svg", svg(chart))
    store.write_bytes(directory / f"{name}.png", vl_convert.vegalite_to_png(_spec(chart), scale=2))
