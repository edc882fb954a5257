"""`snakemake check` on a sweep that was measured for real, and what it says once something is off."""

import json

from speedmatrix.digests import digest
from tests.workflow.conftest import PAGE, Sweep


def checked(sweep: Sweep) -> tuple[int, list[str]]:
    """Exit code, and all lines of our own."""
    code, output = sweep.run("check")
    ours = ("results", "note: ", "check: ", "not all ", "error: ", "config: ", "stopped: ")
    assert "Traceback" not in output
    return code, [line for line in output.splitlines() if line.startswith(ours)]


def test_a_finished_sweep_has_nothing_off_and_nothing_is_started(sweep):
    before, launches = sweep.attempts(), sweep.launches()
    code, lines = checked(sweep)
    told = "check: 8 cells, 7 of them computed again from their arrivals, 8 attempts in the history: nothing is off"
    assert (code, lines) == (0, [told])
    assert sweep.attempts() == before and sweep.launches() == launches


def test_a_finished_sweep_is_checked_after_cells_were_measured_anew(sweep):
    sweep.config["measure"]["duration_s"] = 0.5
    sweep.config["matrix"] = {"prefill": {"contexts": [256]}, "decode": {"contexts": [256], "concurrency": [2]}}
    assert sweep.run(PAGE)[0] == 0
    assert len(list(sweep.directory.glob("results/history/tiny/decode-256-x2.*.npz"))) == 1
    assert checked(sweep)[0] == 0


def test_a_figure_that_was_changed_fails_the_check_in_one_line_each(sweep):
    path = sweep.cell("decode-256-x1")
    cell = json.loads(path.read_text())
    cell["figures"]["request_tok_s"] += 1
    path.write_text(json.dumps(cell))
    code, lines = checked(sweep)
    assert code == 1 and len(lines) == 5, lines
    assert lines[0].startswith("results/cells/tiny/decode-256-x1.json: request_tok_s is ")
    assert lines[1].startswith("results/cells/tiny/decode-256-x1.json: is like no attempt that results/history keeps")
    assert lines[2].startswith("results/measurements.csv: tiny decode 256 x1: request_tok_s is ")
    assert lines[3].endswith("3 things are off")
    assert lines[4] == "not all is well: each line above says what to do"


def test_a_key_is_not_needed_and_an_empty_directory_is_no_pass(fresh):
    fresh.config["servers"]["tiny"]["api_key_env"] = "NOT_SET_ANYWHERE"
    code, lines = checked(fresh)
    assert code == 1
    assert lines[0].startswith("results/cells: no cell was measured here, so nothing is checked: run `snakemake")


def test_a_strict_page_is_refused_in_one_line_and_written_again_once_all_is_of_one_server(sweep):
    path = sweep.cell("decode-256-x1")
    kept = path.read_text()
    cell = json.loads(kept)
    cell["identity"]["version"] = "0"
    path.write_text(json.dumps(cell | {"fingerprint": digest(cell["identity"])}))
    code, output = sweep.run(PAGE)
    assert code == 0 and "Not one server" in (sweep.directory / "results/report.html").read_text()
    sweep.config["report"] = {"strict": True}
    code, output = sweep.run(PAGE)
    assert code != 0 and not (sweep.directory / "results/report.html").exists()
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert "report.strict: decode-256-x1 of tiny measured something else" in line and "Traceback" not in output
    path.write_text(kept)
    assert sweep.run(PAGE)[0] == 0 and (sweep.directory / "results/report.html").exists()
