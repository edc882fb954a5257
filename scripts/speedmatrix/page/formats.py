"""How numbers look on the page: one form for each kind of figure, everywhere the same."""

from __future__ import annotations

from collections.abc import Callable

ABSENT = "—"


def _form(pattern: str) -> Callable[[float | None], str]:
    def form(value: float | None) -> str:
        return ABSENT if value is None else pattern.format(value)

    return form


def utc(moment: str | None) -> str:
    """`2026-12-01T05:10:00Z` → `1 Dec 2026, 05:10 UTC`."""
    if not moment:
        return ABSENT
    months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    return f"{int(moment[8:10])} {months[int(moment[5:7]) - 1]} {moment[:4]}, {moment[11:16]} UTC"


def text(value: object) -> str:
    """A fact as it is, or a dash; whole numbers with thousands separators."""
    if value is None or value == "":
        return ABSENT
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


FILTERS: dict[str, Callable[..., str]] = {
    "speed": _form("{:,.1f}"),
    "ms": _form("{:,.0f} ms"),
    "fine_ms": _form("{:,.2f} ms"),
    "count": _form("{:,.0f}"),
    "decimal": _form("{:.1f}"),
    "seconds": _form("{:.1f} s"),
    "utc": utc,
    "fact": text,
}
