"""What tests do to a sweep that is under way, and how they look at what it left."""

import re
import shlex
import time

import psutil
import requests

from speedmatrix import store
from tests.workflow.conftest import Sweep


def wait_for(process, ready, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def measuring(sweep: Sweep, cell: str) -> psutil.Process:
    """The process that measures this cell, which has begun."""
    log = f"logs/tiny/{cell}.log"
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
            here = process.cwd() == str(sweep.directory)
        except psutil.Error:
            continue
        if here and "cell.py" in line and (sweep.directory / log).exists():
            return process
    raise AssertionError(f"nothing measures {cell}")


def in_cell(sweep: Sweep, process, cell: str) -> psutil.Process:
    """The process that measures this cell, once the server works for it."""
    wait_for(process, (sweep.directory / f"logs/tiny/{cell}.log").exists)
    wait_for(process, lambda: _is_asked(sweep.config["servers"]["tiny"]["url"]))
    return measuring(sweep, cell)


def seconds_until_gone(sweep: Sweep, most: float = 20) -> float:
    """How long it takes from now until nothing but snakemake itself is left."""
    began = time.monotonic()
    while any("-m snakemake" not in line for line in sweep.processes()):
        assert time.monotonic() - began < most, sweep.processes()
        time.sleep(0.02)
    return time.monotonic() - began


def _is_asked(url: str) -> bool:
    try:
        told = requests.get(f"{url}/metrics", timeout=2).text
    except requests.RequestException:
        return False
    return re.search(r"requests_(?:processing|running)\S* [1-9]", told) is not None


def whole(sweep: Sweep) -> dict[str, dict]:
    """All cells that are there, each read and valid by its schema."""
    return {path.stem: store.read_valid(path, "cell") for path in sweep.directory.glob("results/cells/tiny/*.json")}


def few(sweep: Sweep) -> None:
    """Leave 3 cells."""
    sweep.config["matrix"] = {"prefill": {"contexts": [256]}, "decode": {"contexts": [256], "concurrency": [1, 2]}}


def shell(sweep: Sweep, before: str, after: str = "") -> None:
    """Launch the server by a shell that does something before and after it."""
    launch = sweep.config["servers"]["tiny"]["launch"]
    command = " ".join(shlex.quote(str(word)) for word in launch["command"]).replace("'{python}'", '"{python}"')
    launch["command"] = f"{before} {command} {after}"
