"""What the person reads while a sweep runs, and the estimate of its time, by arithmetic."""

from pathlib import Path

import pytest

from speedmatrix import estimate, progress, store
from speedmatrix.cells import Capacity, Cell
from speedmatrix.config import parse
from tests.unit import samples

CONFIG = parse(
    {
        "servers": {"vllm": {"engine": "vllm", "url": "http://127.0.0.1:9"}},
        "matrix": {"prefill": {"contexts": ["1K"]}, "decode": {"contexts": ["1K", "4K"], "concurrency": [1, 8]}},
        "measure": {"duration_s": 10, "settle_s": 1, "prefill_repeats": 3, "max_output_tokens": 1000},
    }
)


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_cells_time_by_the_nearest_measured_prefill():
    known = estimate.Speeds({1024: 1024.0, 4096: 2048.0}, Capacity())
    # One discarded and three kept requests of 1 s; 8 prompts of 2 s before a window of 10 s.
    assert estimate.cell_s(Cell("s", "prefill", 1024), CONFIG.measure, known) == pytest.approx(4 + estimate.OVERHEAD_S)
    assert estimate.cell_s(Cell("s", "decode", 4096, 8), CONFIG.measure, known) == pytest.approx(
        16 + 1 + 10 + estimate.OVERHEAD_S
    )


def test_a_cell_that_does_not_fit_takes_only_its_process():
    known = estimate.Speeds({1024: 1.0}, Capacity(kv_tokens=8 * 5000))
    assert estimate.cell_s(Cell("s", "decode", 4096, 8), CONFIG.measure, known) == estimate.OVERHEAD_S


def test_time_left_is_of_the_cells_without_a_result():
    prefill_s, decode_s = 4 * 1024 / 5000, 1024 / 5000
    cells = 5 * estimate.OVERHEAD_S + prefill_s + (1 + 8 + 4 + 32) * decode_s + 4 * 11
    assert progress.time_left_s(CONFIG) == pytest.approx(cells)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (95, "1 min 35 s"), (3600, "1 h 0 min"), (9000, "2 h 30 min")]
)
def test_durations_in_words(seconds, text):
    assert estimate.duration_text(seconds) == text


def test_a_line_for_each_status():
    figures = samples.seed_cells()[10]["figures"]
    cell = CONFIG.cells()[1]
    valid = progress.cell_line(CONFIG, cell, samples.cell(figures=figures, flags=["unsteady"]))
    assert valid.startswith(
        "[2/5] vllm decode 1K x1: valid · unsteady · 323.7 tok/s · 37.8 each · TTFT 3,998 ms · ITL 26.4"
    )
    failed = progress.cell_line(CONFIG, cell, samples.cell(status="failed", reason="a stream stalled"))
    assert "failed · a stream stalled · about " in failed


def test_how_far_an_interrupted_run_came():
    assert progress.interrupted_line(CONFIG).startswith("stopped: 0 of 5 cells are measured; the same command goes on")
    for cell, status in zip(CONFIG.cells(), ("valid", "over_capacity", "failed", "limited"), strict=False):
        own = {"phase": cell.phase, "context_tokens": cell.context, "concurrency": cell.concurrency}
        store.write_json(Path(cell.path), samples.cell(status=status, **own))
    Path(CONFIG.cells()[4].path).write_text("{")  # neither measured nor failed
    assert progress.interrupted_line(CONFIG).startswith("stopped: 3 of 5 cells are measured, 1 failed; the same")
    for cell in CONFIG.cells():
        own = {"phase": cell.phase, "context_tokens": cell.context, "concurrency": cell.concurrency}
        store.write_json(Path(cell.path), samples.cell(**own))
    assert progress.interrupted_line(CONFIG).startswith("stopped: not every cell is up to date with the config;")
