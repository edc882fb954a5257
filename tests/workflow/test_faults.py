"""What can happen to a sweep, done to it for real: what was measured stays, what was started ends, one line says so."""

import json
import os
import resource
import signal
import time

import pytest

from tests.accuracy.truth import serving
from tests.workflow.conftest import Sweep
from tests.workflow.doing import few, in_cell, seconds_until_gone, shell, wait_for, whole


@pytest.mark.fault(
    "Ctrl-C, SIGTERM, SIGHUP, SIGKILL to snakemake while a server starts", "server and children gone in 2 s"
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_sweep_that_ends_while_its_server_starts_leaves_nothing(fresh, number):
    shell(fresh, "setsid sleep 1000 & sleep 1000;")
    process = fresh.start()
    wait_for(process, lambda: sum("sleep 1000" in line for line in fresh.processes()) >= 2)
    from_terminal = number in (signal.SIGINT, signal.SIGHUP)  # which tells all processes of its foreground
    (os.killpg if from_terminal else os.kill)(process.pid, number)
    assert seconds_until_gone(fresh) < 2
    output, _ = process.communicate(timeout=30)
    assert fresh.wait_for_end(2) == [], output
    assert "Traceback" not in output
    assert fresh.attempts() == []


@pytest.mark.fault(
    "a server that ignores SIGTERM and forks workers into sessions of their own",
    "all of it is gone after stop_grace_s",
)
def test_a_server_that_will_not_end_is_ended(fresh):
    fresh.config["servers"]["tiny"]["launch"]["stop_grace_s"] = 1
    shell(fresh, "trap '' TERM; setsid sleep 1000 & ", "; sleep 1000")
    process = fresh.start()
    wait_for(process, fresh.cell("prefill-256").exists)
    os.kill(process.pid, signal.SIGINT)
    assert seconds_until_gone(fresh) < 1 + 2  # the grace, and what is promised beyond it
    process.communicate(timeout=60)
    assert fresh.wait_for_end(2) == []


@pytest.mark.fault("a server that dies as it starts", "one line with its code, its last words and where its log is")
def test_a_server_that_dies_as_it_starts_ends_the_sweep(fresh):
    shell(fresh, "echo out of memory; exit 9;")
    code, output = fresh.run()
    assert code != 0 and fresh.launches() == 1 and fresh.attempts() == []
    (said,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert "code 9" in said and "logs/server-tiny.log" in said and "out of memory" in output
    assert "Traceback" not in output and fresh.wait_for_end(3) == []


@pytest.mark.fault(
    "a server that dies in a cell and then fails to start, twice in a row",
    "given up after max_launches, in one line; the next run goes on",
)
def test_a_server_that_does_not_come_back_is_given_up(fresh):
    few(fresh)
    shell(fresh, "echo >> starts; [ $(wc -l < starts) = 2 -o $(wc -l < starts) = 3 ] && echo no memory && exit 5;")
    process = fresh.start()
    in_cell(fresh, process, "decode-256-x1")
    os.kill(json.loads((fresh.directory / ".speedmatrix/state.json").read_text())["pid"], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    (said,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert process.returncode != 0 and "tiny failed to start 2 times in a row: see logs/server-tiny.log" in said
    assert "no memory" in said and "Traceback" not in output and fresh.launches() == 3
    done = whole(fresh)
    assert {name: cell["status"] for name, cell in done.items()} == {"prefill-256": "valid", "decode-256-x1": "failed"}
    code, output = fresh.run()
    assert code == 0, output
    cells = whole(fresh)
    assert {cell["status"] for cell in cells.values()} == {"valid"} and len(cells) == 3
    assert cells["prefill-256"] == done["prefill-256"]


@pytest.mark.fault(
    "the measuring process stopped for 5 s (SIGSTOP)", "that cell is failed, and measured by the next run"
)
def test_a_measurement_that_was_stopped_is_no_figure(fresh):
    few(fresh)
    fresh.config["measure"]["duration_s"] = 3
    process = fresh.start()
    measurer = in_cell(fresh, process, "decode-256-x2")
    time.sleep(0.8)
    measurer.suspend()
    time.sleep(5)
    measurer.resume()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    cell = whole(fresh)["decode-256-x2"]
    assert cell["status"] == "failed" and cell["figures"] is None
    assert "late" in cell["reason"] or "stopped" in cell["reason"]
    code, output = fresh.run()
    assert code == 0 and whole(fresh)["decode-256-x2"]["status"] == "valid", output


def test_nor_in_a_prefill(tmp_path):
    sweep = Sweep(tmp_path, {"matrix": {"prefill": {"contexts": ["16K"]}}, "measure": {"prefill_repeats": 1}})
    with serving(1) as truth:  # which takes 1.6 s for each of the cell's two prompts
        sweep.config["servers"] = {"tiny": {"engine": "vllm", "url": truth.url}}
        process = sweep.start("results/cells/tiny/prefill-16K.json")
        measurer = in_cell(sweep, process, "prefill-16K")
        measurer.suspend()
        time.sleep(2)
        measurer.resume()
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    cell = whole(sweep)["prefill-16K"]
    assert cell["status"] == "failed" and "stopped or late by" in cell["reason"] and cell["figures"] is None


@pytest.mark.fault("the measuring process killed (SIGKILL)", "one line; the next run measures that cell")
def test_a_measurement_that_was_killed_is_made_by_the_next_run(fresh):
    few(fresh)
    process = fresh.start()
    in_cell(fresh, process, "decode-256-x1").kill()
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    last = [line for line in output.splitlines() if line.strip()][-1]
    assert last.startswith("stopped: ") and "the same command goes on" in last, output
    done = whole(fresh)
    assert set(done) == {"prefill-256"} and fresh.wait_for_end(4) == []
    code, output = fresh.run()
    assert code == 0, output
    cells = whole(fresh)
    assert len(cells) == 3 and cells["prefill-256"] == done["prefill-256"]


@pytest.mark.fault("no room for a cell's files (limit on file sizes)", "one line; no half file; the rest is kept")
def test_a_disk_that_is_full_costs_only_what_does_not_fit(tmp_path):
    sweep = Sweep(tmp_path, {"measure": {"duration_s": 3, "prefill_repeats": 1}})
    with serving(20) as truth:  # some 1,500 tokens a second
        sweep.config["servers"] = {"tiny": {"engine": "vllm", "url": truth.url}}
        few(sweep)
        process = sweep.start()
        wait_for(process, sweep.cell("prefill-256").exists)
        limit = 12_000  # more than any JSON here, less than the arrivals of 3 s
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        output, _ = process.communicate(timeout=120)
        assert process.returncode != 0
        assert "File too large: raise the limit on file sizes (ulimit -f), then run again" in output, output
        assert "Traceback" not in output
        done = whole(sweep)
        assert set(done) == {"prefill-256"}
        folder = sweep.cell("prefill-256").parent
        names = [path.name for path in folder.iterdir()]
        assert not [name for name in names if name.startswith(".") or not name.endswith((".json", ".npz", ".csv"))]
        assert sweep.wait_for_end(4) == []
        code, output = sweep.run()
    assert code == 0, output
    cells = whole(sweep)
    assert len(cells) == 3 and cells["prefill-256"] == done["prefill-256"]
    assert sweep.cell("decode-256-x1").with_suffix(".arrivals.npz").stat().st_size > limit


@pytest.mark.fault("results/ read-only", "refused in one line before anything starts")
def test_results_that_cannot_be_written_stop_the_sweep_before_it_starts(fresh):
    results = fresh.directory / "results"
    results.mkdir()
    results.chmod(0o555)
    # Root may write anywhere, unless it gives that capability away.
    powerless = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
    code, output = fresh.run(through=powerless)
    assert code != 0 and f"{results} can't be written" in output, output
    assert "Traceback" not in output and list(results.iterdir()) == [] and fresh.launches() == 0


@pytest.mark.fault("two sweeps in two directories on one server", "the second is refused, the first unharmed")
def test_a_server_that_another_directory_measures_is_left_alone(fresh, tmp_path):
    few(fresh)
    process = fresh.start()
    wait_for(process, fresh.cell("prefill-256").exists)
    (tmp_path / "second").mkdir()
    server = {"engine": "llama.cpp", "url": fresh.config["servers"]["tiny"]["url"].replace("127.0.0.1", "localhost")}
    server["facts"] = {"launch_command": "llama-server --kv-unified"}
    second = Sweep(tmp_path / "second", fresh.config | {"servers": {"tiny": server}})
    code, output = second.run()
    assert code != 0 and "another sweep is measuring" in output and "Traceback" not in output, output
    assert second.attempts() == []
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    cells = whole(fresh)
    assert len(cells) == 3 and {cell["status"] for cell in cells.values()} == {"valid"}
