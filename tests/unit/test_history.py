"""Nothing that was measured is lost: every attempt stays, and the arrivals of each with it."""

import itertools
import json
import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from speedmatrix import arrivals, history, integration, store, sweep
from speedmatrix.arrivals import Run, Stream
from speedmatrix.cells import Cell
from speedmatrix.series import Window
from tests.unit import samples

CELL = Cell("vllm", "decode", 8192, 1)
BESIDE = Path("results/cells/vllm/decode-8K-x1.arrivals.npz")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def attempt(t_ns: int | None, **more) -> None:
    """One attempt with a single arrival at `t_ns`, or one that failed, as a job leaves it."""
    run = None if t_ns is None else Run([Stream(0, 0, 0, [t_ns], [1])], 0, 1)
    status = {"status": "failed", "reason": "a stream stalled"} if run is None else {"figures": {"total_tok_s": 1.0}}
    Path(CELL.path).unlink(missing_ok=True)  # as Snakemake does before a job
    series = None if run is None else f"t_s,t_ns\n0.0,{t_ns}\n"
    telemetry = integration.summary(integration.Taken(failed="none"), Window(0, 1, None))
    kept = samples.cell(**status | {"telemetry": telemetry} | more)
    sweep._keep(CELL, sweep._Attempt(kept, run, series))


def kept() -> list[int | None]:
    """The arrival that is kept in results/history of each attempt, the oldest first."""
    files = [history.arrivals_of(path) for path in history.attempts(CELL)]
    return [arrivals.load(file).streams[0].t_ns[0] if file.exists() else None for file in files]


def test_every_attempt_keeps_its_own_arrivals():
    for t_ns in (1, 2, None, None, 3):
        attempt(t_ns)
    assert kept() == [1, 2, None, None, None]
    assert arrivals.load(BESIDE).streams[0].t_ns == [3]
    texts = [json.loads(path.read_text())["status"] for path in history.attempts(CELL)]
    assert texts == ["valid", "valid", "failed", "failed", "valid"]
    sampled = [path.with_name(f"{path.stem}.telemetry.csv") for path in history.attempts(CELL)]
    assert [file.exists() and file.read_text().split(",")[-1] for file in sampled] == [
        "1\n",
        "2\n",
        False,
        False,
        False,
    ]


@pytest.mark.fault(
    "the wall clock set back between attempts at a cell", "each keeps its place in the history, and its arrivals"
)
def test_attempts_stay_in_their_order_when_the_clock_is_set_back(monkeypatch):
    hours = itertools.count(0, -1)

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2026, 12, 1, 15, tzinfo=tz) + timedelta(hours=next(hours))

    monkeypatch.setattr(store, "datetime", Clock)
    for t_ns in (1, 2, None, 3):
        attempt(t_ns)
    assert kept() == [1, 2, None, None] and arrivals.load(BESIDE).streams[0].t_ns == [3]
    odd = history.history_dir(CELL) / f"{CELL.name}.1T.json"
    odd.write_text("{}")
    attempt(4)
    assert len(history.attempts(CELL)) == 6


def test_a_failed_attempt_takes_no_arrivals_away():
    attempt(1)
    attempt(None)
    assert kept() == [1, None] and not BESIDE.exists()


def test_a_start_that_failed_leaves_everything_in_its_place():
    attempt(1)
    attempt(None, reason=sweep.NOT_STARTED)
    assert kept() == [None, None] and arrivals.load(BESIDE).streams[0].t_ns == [1]


def test_arrivals_of_a_job_that_was_killed_are_taken_for_no_other_attempts():
    attempt(1)
    attempt(2)
    history.set_aside(CELL)
    arrivals.save(Run([Stream(0, 0, 0, [9], [1])], 0, 1), BESIDE)  # and here it was killed
    attempt(3)
    assert kept() == [1, 2, None] and arrivals.load(BESIDE).streams[0].t_ns == [3]


def test_results_without_a_history_are_copied_there_before_anything_is_deleted():
    for lanes in (1, 2, 16):
        cell = samples.cell(concurrency=lanes)
        store.write_json(Path(Cell("vllm", "decode", 8192, lanes).path), cell)
    store.write_json(Path(Cell("vllm", "decode", 8192, 1, 2).path), samples.cell(repeat=2))
    cells = [Cell("vllm", "decode", 8192, lanes) for lanes in (1, 2, 4, 16)] + [Cell("vllm", "decode", 8192, 1, 2)]
    os.utime(cells[0].path, (1_790_535_600, 1_790_535_600.25))
    history.adopt(cells)
    assert [path.name for path in history.attempts(cells[0])] == ["decode-8K-x1.20260927T190000.250000Z.json"]
    assert [len(history.attempts(cell)) for cell in cells] == [1, 1, 0, 1, 1]
    history.adopt(cells)
    assert [len(history.attempts(cell)) for cell in cells] == [1, 1, 0, 1, 1]
