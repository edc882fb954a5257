"""What is changed beside the measuring: the code, which measures nothing anew, and the launch command, which does."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.accuracy.truth import TABLE
from tests.workflow.conftest import ROOT, Sweep, free_port

CELLS = ["decode-512-x1", "decode-512-x2", "prefill-512"]


def cloned(place: Path) -> Path:
    """The repository's files as they are here, in a place of their own; returns its Snakefile."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if name.startswith(("Snakefile", "rules/", "scripts/", "config/", "envs/", "profiles/")):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    return place / "Snakefile"


@pytest.fixture
def truth(tmp_path) -> Sweep:
    """A sweep of 3 cells of the truth server, which it launches, by a clone of the repository."""
    port = free_port()
    command = ["{python}", "-m", "tests.truth_server", "--port", port, "--table", str(TABLE), "--speedup", 20]
    server = {"engine": "vllm", "url": f"http://127.0.0.1:{port}"}
    server["launch"] = {"command": command, "env": {"PYTHONPATH": str(ROOT)}, "ready_timeout_s": 60}
    config = {
        "servers": {"truth": server},
        "matrix": {"prefill": {"contexts": [512]}, "decode": {"contexts": [512], "concurrency": [1, 2]}},
        "measure": {"duration_s": 0.5, "settle_s": 0.1, "prefill_repeats": 1},
    }
    (tmp_path / "sweep").mkdir()
    return Sweep(tmp_path / "sweep", config, cloned(tmp_path / "clone"))


def measured(sweep: Sweep) -> list[str]:
    """The cells that a run attempts."""
    before = sweep.attempts()
    code, output = sweep.run()
    assert code == 0, output
    return sweep.measured_since(before)


@pytest.mark.fault("a comment edited in a script, every file of ours touched, another checkout", "nothing is measured")
@pytest.mark.fault("the wall clock set back by an hour between the server's start and its cells", "nothing is measured")
@pytest.mark.fault("the launch command edited", "all cells of that server are measured again")
def test_code_costs_no_cell_and_a_launch_command_all_of_its_servers(truth):
    assert measured(truth) == CELLS
    clone = truth.snakefile.parent
    for path in (clone / "scripts/cell.py", clone / "scripts/speedmatrix/metrics.py", clone / "rules/measure.smk"):
        path.write_text(path.read_text() + "\n# a comment\n")
    for path in clone.rglob("*"):
        os.utime(path)
    assert measured(truth) == [] and truth.launches() == 1
    truth.snakefile = cloned(clone.with_name("another"))
    assert measured(truth) == [] and truth.launches() == 1
    for path in truth.directory.glob("results/servers/truth/*/*.json"):
        os.utime(path, (time.time() + 3600,) * 2)
    assert measured(truth) == [] and truth.launches() == 1
    truth.config["servers"]["truth"]["launch"]["command"] += ["--kv-capacity", 800_000]
    assert measured(truth) == CELLS and truth.launches() == 2
    assert truth.wait_for_end(3) == []
