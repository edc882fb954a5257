"""A sweep that is interrupted: nothing is left running, and the next run goes on from there."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from speedmatrix import hosts
from tests.workflow.conftest import PAGE, Sweep
from tests.workflow.doing import few, in_cell, seconds_until_gone, shell, wait_for, whole


def interrupted(sweep: Sweep, number: int, whole_group: bool) -> tuple[set[str], float, str]:
    """Start a sweep and send the signal while its second decode cell is being measured.

    Returns the cells that were done by then, the seconds until server and jobs were gone, and what was printed.
    """
    process = sweep.start()
    in_cell(sweep, process, "decode-256-x2")
    done = set(sweep.measured_since([]))
    if whole_group:
        os.killpg(process.pid, number)
    else:
        os.kill(process.pid, number)
    took = seconds_until_gone(sweep)
    output, _ = process.communicate(timeout=60)
    assert sweep.wait_for_end(2) == []
    with socket.create_server(("127.0.0.1", hosts.port_of(sweep.config["servers"]["tiny"]["url"]))):
        return done, took, output  # with the port free again


WAYS = {
    "ctrl-c": (signal.SIGINT, True),
    "SIGINT": (signal.SIGINT, False),
    "SIGTERM": (signal.SIGTERM, False),
    "SIGHUP": (signal.SIGHUP, True),
    "SIGKILL": (signal.SIGKILL, False),
}


@pytest.mark.fault(
    "Ctrl-C, SIGINT, SIGTERM, SIGHUP, SIGKILL to snakemake in mid-cell",
    "server and children gone in 2 s, port free; the next run (--unlock where asked for) measures what is missing",
)
@pytest.mark.parametrize(("number", "whole_group"), WAYS.values(), ids=WAYS)
def test_nothing_is_left_and_the_next_run_goes_on(fresh, number, whole_group):
    fresh.config["matrix"] = {"prefill": {"contexts": [256]}, "decode": {"contexts": [256], "concurrency": [1, 2, 4]}}
    done, took, output = interrupted(fresh, number, whole_group)
    assert took < 2, output
    assert done == {"prefill-256", "decode-256-x1"}
    before, measured = fresh.attempts(), set(fresh.measured_since([]))
    assert measured == done  # the cell under way was ended, not waited for
    assert "Traceback" not in output
    if number == signal.SIGINT:
        last = [line for line in output.splitlines() if line.strip()][-1]
        assert last.startswith("stopped: ") and "of 4 cells are measured" in last, output
    if number == signal.SIGKILL:
        code, said = fresh.run()
        assert code != 0 and "a run that was killed left its lock here: the same command with --unlock" in said
        code, said = fresh.run("check")  # needs no lock
        assert code == 0 and "nothing is off" in said
    if number in (signal.SIGKILL, signal.SIGHUP):
        code, said = fresh.run("results/report.html", "--unlock")
        assert code == 0, said
    code, output = fresh.run()
    assert code == 0, output
    again = set(fresh.measured_since(before))
    assert not again & done
    assert len(again | measured) == 4


def with_a_worker(sweep: Sweep) -> Path:
    """Let the server fork a worker into a session of its own, and the sweep have 3 cells; returns the state's file."""
    few(sweep)
    shell(sweep, "setsid sleep 1000 &")
    return sweep.directory / ".speedmatrix/state.json"


@pytest.mark.fault("the supervisor killed", "server and workers end with it; the sweep starts another and goes on")
def test_a_killed_supervisor_takes_its_server_along_and_the_sweep_goes_on(fresh):
    state = with_a_worker(fresh)
    process = fresh.start()
    wait_for(process, fresh.cell("prefill-256").exists)
    boot = json.loads(state.read_text())["boot_id"]
    os.kill(int(boot.split(":")[0]), signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert json.loads(state.read_text())["boot_id"] != boot
    assert fresh.wait_for_end(5) == []
    cells = whole(fresh)
    assert len(cells) == 3 and sum(cell["status"] == "valid" for cell in cells.values()) >= 2
    assert "Traceback" not in output


@pytest.mark.fault("the supervisor and snakemake killed at once", "server and workers gone all the same")
def test_a_supervisor_that_is_killed_with_its_sweep_leaves_nothing(fresh):
    state = with_a_worker(fresh)
    fresh.config["measure"]["duration_s"] = 4  # its measuring process is what sees it, and must not end just then
    process = fresh.start()
    in_cell(fresh, process, "decode-256-x2")
    os.kill(int(json.loads(state.read_text())["boot_id"].split(":")[0]), signal.SIGKILL)
    process.kill()
    process.communicate(timeout=30)
    assert fresh.wait_for_end(2) == []


@pytest.mark.fault(
    "a server that dies in a cell",
    "that cell is failed with code and last log line; the next runs on a restarted server",
)
def test_a_server_that_dies_in_a_cell_fails_that_cell_alone(fresh):
    process = fresh.start(PAGE)
    in_cell(fresh, process, "decode-256-x2")
    os.kill(json.loads((fresh.directory / ".speedmatrix/state.json").read_text())["pid"], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    kept = {path.stem: json.loads(path.read_text()) for path in (fresh.directory / "results/cells/tiny").glob("*.json")}
    failed = [name for name, cell in kept.items() if cell["status"] == "failed"]
    assert failed == ["decode-256-x2"] and len(kept) == 8
    assert kept["decode-256-x2"]["reason"].startswith(
        "the server ended with signal 9 (SIGKILL) (see logs/server-tiny.log"
    )
    assert kept["decode-256-x2"]["figures"] is None
    assert kept["decode-256-x4"]["boot_id"] != kept["decode-256-x1"]["boot_id"]
    assert "1 cell failed" in (fresh.directory / "results/report.html").read_text()


@pytest.mark.fault("the port taken by another program", "refused in one line; nothing is measured by mistake")
def test_a_taken_port_is_refused(fresh):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", int(fresh.config["servers"]["tiny"]["url"].rpartition(":")[2])))
        listener.listen()
        code, output = fresh.run()
    assert code != 0
    assert "already in use by a program that this sweep did not start" in output and "Traceback" not in output
    assert fresh.attempts() == []


@pytest.mark.fault("two sweeps in one directory", "the second is refused with the first one's pid, the first unharmed")
def test_a_second_sweep_in_the_same_directory_is_refused_and_the_first_unharmed(fresh):
    process = fresh.start()
    deadline = time.monotonic() + 60
    while not (fresh.directory / "results/cells/tiny/prefill-256.json").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    code, second = fresh.run()
    assert code != 0
    assert f"another run is at work in this directory (process {process.pid}): let it end" in second
    code, second = fresh.run("check")
    assert code == 0 and "nothing is off" in second
    assert process.poll() is None
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert len(list((fresh.directory / "results/cells/tiny").glob("*.json"))) == 8
