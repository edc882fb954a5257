"""The examples: each is valid, and says what it would do without a server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from speedmatrix import config
from tests.workflow.conftest import ROOT

EXAMPLES = sorted((ROOT / "config/examples").glob("*.yaml"))
CELLS = {"vllm-8-gpus": 7 + 6 * 8, "sglang": 2 * (3 + 3 * 4), "llama-server": 3 + 3 * 4, "remote-openai": 2 + 2 * 3}
CELLS |= {"laptop": 3 + 3 * 2}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_valid_and_planned_without_a_server_or_its_keys(path, tmp_path):
    assert len(config.read([str(path)]).cells()) == CELLS[path.stem]
    told = planned(tmp_path, f"--configfile={path}")
    assert f"{CELLS[path.stem]} of {CELLS[path.stem]} cells would be measured" in told


def test_plan_takes_the_options_that_snakemake_does(tmp_path):
    fewer = tmp_path / "fewer.yaml"
    fewer.write_text("matrix: {decode: {contexts: [1K], concurrency: [1, 2]}}")
    laptop = str(ROOT / "config/examples/laptop.yaml")
    # Laptop's 3 prefill contexts stay; decode is 1 context × 2; then --config leaves 1 prefill context.
    assert "5 of 5 cells" in planned(tmp_path, "--configfile", laptop, str(fewer))
    one = ["--config", "matrix={prefill: {contexts: [1K]}}"]
    assert "3 of 3 cells" in planned(tmp_path, "--configfile", laptop, str(fewer), *one)


def planned(directory: Path, *options: str) -> str:
    """What `plan` says, with none of the variables set that hold keys."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    command = [sys.executable, str(ROOT / "scripts/plan.py"), "--snakefile", str(ROOT / "Snakefile"), *options]
    told = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


def test_the_published_pages_launch_command_is_the_examples():
    (server,) = config.read([str(ROOT / "config/examples/vllm-8-gpus.yaml")]).servers.values()
    published = (ROOT / "tests/data/seed_launch_command.txt").read_text()
    words = [word for word in published.split() if word.startswith("--")]
    assert [word for word in server.launch.command.split() if word.startswith("--")] == words
