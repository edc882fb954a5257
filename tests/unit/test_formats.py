"""One form for each kind of figure."""

import pytest

from speedmatrix import formats


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [(0.64, "−36 %"), (1.0, "±0 %"), (1.5, "+50 %"), (0.996, "−0.4 %"), (1.0004, "±0 %"), (10, "+900 %")],
)
def test_a_ratio_as_a_change(ratio, shown):
    assert formats.percent(ratio) == shown


def test_numbers_lists_and_spans():
    assert formats.speed(10100) == "10,100.0" and formats.ms(29173.6) == "29,174 ms" and formats.speed(None) == "—"
    assert formats.listed([]) == "" and formats.listed("a") == "a" and formats.listed("abc") == "a, b and c"
    assert formats.span([3, 1, 2], formats.count) == "1–3" and formats.span([1.01, 1.04], formats.decimal) == "1.0"
    assert formats.counted(1, "cell") == "1 cell" and formats.counted(1200, "cell") == "1,200 cells"
    assert formats.utc("2026-12-01T05:10:00Z") == "1 Dec 2026, 05:10 UTC" and formats.utc(None) == "—"
    assert formats.fact(19074304) == "19,074,304" and formats.fact(True) == "True" and formats.fact("") == "—"
