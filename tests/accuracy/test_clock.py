"""The wall clock labels a run and times nothing."""

import itertools
import time

import pytest

from speedmatrix import store
from speedmatrix.cells import Cell
from tests.accuracy.truth import serving


@pytest.mark.fault("the wall clock set back by an hour, again and again, in mid-window", "figures are as without it")
def test_a_clock_that_is_set_back_changes_no_figure(monkeypatch):
    jumps = itertools.count(start=time.time(), step=-3600)
    cell = Cell("truth", "decode", 512, 4)
    with serving(5) as truth:
        monkeypatch.setattr(time, "time", lambda: next(jumps))
        monkeypatch.setattr(time, "time_ns", lambda: int(next(jumps) * 1e9))
        monkeypatch.setattr(store, "utc_now", lambda: "1999-12-31T23:59:59Z")
        seen, told = truth.measure(cell, duration_s=1, settle_s=0.1)
    assert seen.figures["total_tok_s"] == pytest.approx(truth.total_tok_s(cell), rel=0.01)
    assert seen.figures["measured_s"] == 1 and seen.flags == []
    assert seen.figures["ttft_ms"] == pytest.approx(truth.ttft_ms(cell, told), abs=5)
