"""The examples: each is valid, and says what it would do without a server."""

import os
import subprocess
import sys

import pytest

from speedmatrix import config
from tests.workflow.conftest import ROOT

EXAMPLES = sorted((ROOT / "config/examples").glob("*.yaml"))
CELLS = {"vllm-8-gpus": 7 + 6 * 8, "sglang": 2 * (3 + 3 * 4), "llama-server": 3 + 3 * 4, "remote-openai": 2 + 2 * 3}
CELLS |= {"laptop": 3 + 3 * 2}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_valid_and_planned_without_a_server(path, tmp_path):
    assert len(config.read([str(path)]).cells()) == CELLS[path.stem]
    environment = {**os.environ, "VLLM_API_KEY": "x", "ENDPOINT_API_KEY": "x"}
    command = [sys.executable, str(ROOT / "scripts/plan.py"), "--configfile", str(path)]
    command += ["--snakefile", str(ROOT / "Snakefile")]
    told = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stdout + told.stderr
    assert f"{CELLS[path.stem]} of {CELLS[path.stem]} cells would be measured" in told.stdout


def test_the_published_pages_launch_command_is_the_examples():
    (server,) = config.read([str(ROOT / "config/examples/vllm-8-gpus.yaml")]).servers.values()
    published = (ROOT / "tests/data/seed_launch_command.txt").read_text()
    words = [word for word in published.split() if word.startswith("--")]
    assert [word for word in server.launch.command.split() if word.startswith("--")] == words
