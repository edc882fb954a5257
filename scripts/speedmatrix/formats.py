"""How figures look in text: one form for each kind, everywhere the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable

ABSENT = "—"


def _form(pattern: str) -> Callable[[float | None], str]:
    def form(value: float | None) -> str:
        return ABSENT if value is None else pattern.format(value)

    return form


speed = _form("{:,.1f}")
ms = _form("{:,.0f} ms")
fine_ms = _form("{:,.2f} ms")
count = _form("{:,.0f}")
decimal = _form("{:.1f}")
seconds = _form("{:.1f} s")
small = _form("{:,.3g}")
watts = _form("{:,.0f} W")
joules = _form("{:,.0f} J")
celsius = _form("{:.0f} °C")


def utc(moment: str | None) -> str:
    """`2026-12-01T05:10:00Z` → `1 Dec 2026, 05:10 UTC`."""
    if not moment:
        return ABSENT
    months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    return f"{int(moment[8:10])} {months[int(moment[5:7]) - 1]} {moment[:4]}, {moment[11:16]} UTC"


def fact(value: object) -> str:
    """A fact as it is, or a dash; whole numbers with thousands separators."""
    if value is None or value == "":
        return ABSENT
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def percent(ratio: float) -> str:
    """A ratio as a change: 0.64 → `−36 %`, 1.0 → `±0 %`; a tenth where it is under one percent."""
    change = 100 * (ratio - 1)
    digits = 0 if abs(change) >= 1 else 1
    shown = f"{abs(change):.{digits}f}"
    sign = "±" if float(shown) == 0 else "−" if change < 0 else "+"
    return f"{sign}{'0' if float(shown) == 0 else shown} %"


def span(values: Iterable[float], form: Callable[[float | None], str]) -> str:
    """`8,529.0–10,100.0`, or one of them where both ends look the same."""
    shown = list(values)
    low, high = form(min(shown)), form(max(shown))
    return low if low == high else f"{low}–{high}"


def listed(parts: Iterable[str]) -> str:
    """`a, b and c`."""
    words = list(parts)
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 cell`, `2 cells`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


FILTERS: dict[str, Callable[..., str]] = {
    "speed": speed,
    "ms": ms,
    "fine_ms": fine_ms,
    "count": count,
    "decimal": decimal,
    "seconds": seconds,
    "small": small,
    "utc": utc,
    "fact": fact,
    "counted": counted,
}
