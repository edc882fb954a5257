"""A results directory as a whole: sound ones have nothing off, and each damage is one line."""

import json
import re
from pathlib import Path

import pytest

from speedmatrix import METHOD, arrivals, charts, history, inspection, merge, page, store
from speedmatrix.cells import Cell
from tests.unit import samples
from tests.unit.test_checking import decode_cell, steady_run

MEASURED = Path("results/cells/vllm/decode-8K-x2.json")
OVER = Path("results/cells/vllm/decode-8K-x4.json")
WANTED = [Cell("vllm", "decode", 8192, lanes) for lanes in (2, 4)]


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    """A sound directory: one cell measured twice, one over capacity, table, page, a chart, the server's files."""
    monkeypatch.chdir(tmp_path)
    run = steady_run()
    cell = decode_cell(run, arrivals="decode-8K-x2.arrivals.npz")
    plan = samples.PLAN | {"kv_needed_tokens": 900_001}
    over = samples.cell(
        concurrency=4, status="over_capacity", plan=plan, method=METHOD, fingerprint=None, identity=None
    )
    MEASURED.parent.mkdir(parents=True)
    for result in (cell | {"started_at": "2026-09-27T18:00:00Z"}, cell):
        history.set_aside(WANTED[0])
        arrivals.save(run, MEASURED.with_name(cell["arrivals"]))
        store.write_cell(WANTED[0], result)
    store.write_cell(WANTED[1], over)
    store.write_json(Path("results/servers/vllm/0123456789ab/health.json"), samples.HEALTH)
    publish()


def publish() -> None:
    """Table, page and a chart of what lies there."""
    cells = merge.read_cells([MEASURED, OVER])
    text = merge.csv_text(merge.table(cells))
    store.write_text(Path("results/measurements.csv"), text)
    healths = {"vllm": samples.HEALTH}
    store.write_text(Path("results/report.html"), page.render(page.PageInput(cells, healths, 2, csv=text)))
    chart = charts.spec(charts.CHARTS["matrix"].draw(charts.Data(merge.table(cells), charts.NO_SERIES)))
    store.write_text(Path("results/charts/matrix.json"), chart)


def lines(off: bool = True) -> list[str]:
    looking = inspection.Inspection(WANTED)
    return [finding.line for finding in looking.look() if finding.off == off]


def edit(path: Path, **changes) -> None:
    store.write_json(path, json.loads(path.read_text()) | changes)


def damage_figure(number: str) -> None:
    """Write `number` as it is in place of the cell's completed requests and its total speed."""
    text = MEASURED.read_text()
    for name in ("total_tok_s", "completed"):
        text = re.sub(rf'"{name}": [^,]+', f'"{name}": {number}', text)
    MEASURED.write_text(text)


def first_attempt() -> Path:
    return history.attempts(WANTED[0])[0]


def test_a_sound_directory_has_nothing_off():
    looking = inspection.Inspection(WANTED)
    assert looking.look() == []
    expected = "check: 2 cells, 1 of them computed again from their arrivals, 3 attempts in the history: nothing is off"
    assert looking.summary == expected


def test_nothing_measured_is_one_line_and_no_pass(tmp_path, monkeypatch):
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    (line,) = lines()
    assert line.startswith("results/cells: no cell was measured here, so nothing is checked: run `snakemake")


def test_a_changed_figure_is_found_in_the_cell_and_by_the_table_or_the_page():
    figures = json.loads(MEASURED.read_text())["figures"]
    edit(MEASURED, figures=figures | {"total_tok_s": 300.0})
    found = lines()
    assert found[0].startswith(f"{MEASURED}: total_tok_s is 300, its arrivals give 200: delete its JSON and run again")
    told = "vllm decode 8192 x2: total_tok_s is '200', the cell says '300': run `snakemake"
    assert found[1] == f"{MEASURED}: is like no attempt that results/history keeps: {inspection.ANEW}"
    # The page holds the same table as the CSV, so that is said once.
    assert len(found) == 3 and found[2].startswith(f"results/measurements.csv: {told}")
    Path("results/measurements.csv").unlink()
    assert lines()[2].startswith(f"results/report.html: {told}")


def test_a_page_of_another_table_is_found_though_each_row_is_right():
    text = Path("results/measurements.csv").read_text().splitlines(keepends=True)
    store.write_text(Path("results/measurements.csv"), text[0] + text[2] + text[1])
    (line,) = lines()
    assert line.startswith("results/report.html: it holds another table than results/measurements.csv")


def test_an_older_page_is_said_to_be_unchecked_and_nothing_is_off():
    store.write_text(Path("results/report.html"), "<html>")
    assert lines() == []
    (note,) = lines(off=False)
    assert note.startswith("note: results/report.html: not checked: the page is from an older version")


def test_an_interrupted_sweep_is_told_and_nothing_is_off():
    OVER.unlink()
    for name in ("measurements.csv", "report.html"):
        (Path("results") / name).unlink()
    assert lines() == []
    notes = lines(off=False)
    assert notes[0].startswith("note: results/cells: 1 of the config's 2 cells are not measured yet")
    (unwritten,) = notes[1:]
    assert unwritten.startswith("note: results: 2 files: not written yet: run `snakemake")


def test_a_failed_cell_is_off():
    OVER.unlink()
    store.write_cell(WANTED[1], samples.cell(concurrency=4, status="failed", reason="a stream stalled", identity=None))
    publish()
    assert lines() == [f"{OVER}: failed (a stream stalled): run again: only failed cells are tried anew"]


def test_fingerprints_that_differ_are_off():
    figures = {"total_tok_s": 1.0, "ttft_kind": "unknown"}
    other = samples.cell(concurrency=4, figures=figures, fingerprint="f" * 12, identity=None, imported="a table")
    store.write_cell(WANTED[1], other)
    publish()
    (line,) = lines()
    assert line.startswith("results/cells/vllm: decode-8K-x4 measured something else (ffffffffffff)")
    assert line.endswith("delete results/servers/vllm and run again")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda: MEASURED.write_text('{"schema":'), f"{MEASURED}: can't be read (not valid JSON): delete it"),
        (lambda: MEASURED.write_text("[" * 100_000), f"{MEASURED}: can't be read (not valid JSON): delete it"),
        (lambda: MEASURED.write_bytes(b"\xff\xfe"), f"{MEASURED}: can't be read (not valid JSON): delete it"),
        (lambda: damage_figure("NaN"), f"{MEASURED}: can't be read (not valid JSON): delete it"),
        (lambda: damage_figure("1e999"), f"{MEASURED}: can't be read (not valid JSON): delete it"),
        (lambda: damage_figure("9" * 400), f"{MEASURED}: is no valid cell file (figures"),
        (lambda: damage_figure("-1"), f"{MEASURED}: is no valid cell file (figures"),
        (lambda: edit(MEASURED, status="fine"), f"{MEASURED}: is no valid cell file (status: 'fine' is not one of"),
        (lambda: edit(MEASURED, concurrency=8), f"{MEASURED}: holds another cell (results/cells/vllm/decode-8K-x8"),
        (lambda: MEASURED.with_suffix(".arrivals.npz").unlink(), f"{MEASURED}: its arrivals (decode-8K-x2.arr"),
        (lambda: MEASURED.with_suffix(".arrivals.npz").write_bytes(b"PK"), ".npz: no arrivals that can be read"),
        (lambda: first_attempt().write_text("{"), "Z.json: can't be read (not valid JSON): move it out of"),
        (lambda: edit(first_attempt(), concurrency=8), "Z.json: holds an attempt at another cell (vllm decode-8K-x8)"),
        (lambda: history.arrivals_of(first_attempt()).write_bytes(b""), ".npz: no arrivals that can be read"),
        (lambda: edit(Path("results/servers/vllm/0123456789ab/health.json"), facts=3), "is no valid health file"),
        (lambda: edit(Path("results/charts/matrix.json"), mark=3), "matrix.json: is no Vega-Lite spec: delete it"),
        (lambda: Path("results/charts/matrix.json").write_text("[]"), "matrix.json: is no Vega-Lite spec: delete it"),
    ],
)
def test_each_damage_is_one_line_that_says_what_to_do(damage, said):
    damage()
    found = lines()
    assert said in found[0], found
    assert all("\n" not in line and line.count(": ") >= 2 for line in found)


def test_an_earlier_attempts_figures_are_held_against_its_own_arrivals():
    figures = json.loads(first_attempt().read_text())["figures"]
    edit(first_attempt(), figures=figures | {"itl_ms": 1.0})
    (line,) = lines()
    assert line.startswith(f"{first_attempt()}: itl_ms is 1, its arrivals give 10: move it out of results/history")


def test_what_older_versions_left_is_told_once_and_nothing_is_off():
    for second in range(3):
        path = first_attempt().with_name(f"decode-8K-x2.20250101T00000{second}.000000Z.json")
        path.write_text('{"method": 1}')
    history.arrivals_of(first_attempt().with_name(history.attempts(WANTED[0])[3].name)).unlink()
    Path("results/mine.json").write_text("{}")
    assert lines() == []
    assert lines(off=False) == [
        "note: results/history/vllm: 3 files: not checked: an attempt of an older version",
        "note: results/history: 1 earlier attempt kept without arrivals: figures can't be computed again",
        "note: results/mine.json: not checked: no file of this version",
    ]
