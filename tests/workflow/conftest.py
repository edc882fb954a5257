"""A small sweep of the embedded engine, run for real, and what tests need to run it again in copies."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

ROOT = Path(__file__).parents[2]

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` has it ignored, by every sweep that a test hangs up too

TABLE, PAGE = "results/measurements.csv", "results/report.html"  # the page takes seconds: where it is looked at


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Sweep:
    """A working directory with a config of its own."""

    directory: Path
    config: dict
    snakefile: Path = ROOT / "Snakefile"

    @property
    def config_file(self) -> Path:
        return self.directory / "sweep.yaml"

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "snakemake", "--snakefile", str(self.snakefile), "--cores", "1"]

    def start(self, target: str = TABLE, *more: str, through: tuple[str, ...] = (), **env: str) -> subprocess.Popen:
        self.config_file.write_text(yaml.safe_dump(self.config, sort_keys=False))
        return subprocess.Popen(
            [
                *through,
                *self.command,
                target,
                "--configfile",
                str(self.config_file),
                "--directory",
                str(self.directory),
                *more,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "XDG_CACHE_HOME": str(self.directory.parent / "cache"), **env},
        )

    def run(self, target: str = TABLE, *more: str, through: tuple[str, ...] = (), **env: str) -> tuple[int, str]:
        process = self.start(target, *more, through=through, **env)
        try:
            output, _ = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, output

    def attempts(self) -> list[str]:
        """Names of all attempts ever made."""
        return sorted(path.name for path in self.directory.glob("results/history/*/*.json"))

    def measured_since(self, before: list[str]) -> list[str]:
        """The cells that were attempted since, by name."""
        return sorted(".".join(name.split(".")[:-3]) for name in set(self.attempts()) - set(before))

    def launches(self) -> int:
        """How often a server was started, by the log that every start writes a line into."""
        logs = self.directory.glob("logs/server-*.log")
        return sum(line.startswith("--- ") for log in logs for line in log.read_text().splitlines())

    def cell(self, name: str) -> Path:
        (server,) = self.config["servers"]
        return self.directory / "results/cells" / server / f"{name}.json"

    def processes(self) -> list[str]:
        """Command lines of what still runs for this directory: servers, supervisors, jobs."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line, place = " ".join(process.cmdline()), process.cwd()
                if place == str(self.directory) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(line)
        return found

    def wait_for_end(self, seconds: float) -> list[str]:
        """What is left of our processes after at most `seconds`."""
        deadline = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left


def small_config(port: int) -> dict:
    """8 cells: prefill at 2 contexts, decode at 2 contexts × 3 levels, of which one is over capacity."""
    command = ["{python}", "-m", "speedmatrix.embedded", "--port", port, "--slots", 4, "--kv-unified"]
    return {
        "servers": {
            "tiny": {
                "engine": "llama.cpp",
                "url": f"http://127.0.0.1:{port}",
                "launch": {"command": [*command, "--context", 20224], "ready_timeout_s": 60},
            }
        },
        "matrix": {
            "prefill": {"contexts": [256, "1K"]},
            "decode": {"contexts": [256, "1K"], "concurrency": [1, 2, 4]},
        },
        "measure": {"duration_s": 1, "settle_s": 0.2, "max_output_tokens": 4096, "prefill_repeats": 2},
    }


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> tuple[Sweep, str]:
    """The sweep, run once from nothing to the page, and what it printed."""
    sweep = Sweep(tmp_path_factory.mktemp("sweeps") / "finished", small_config(free_port()))
    sweep.directory.mkdir()
    code, output = sweep.run(PAGE)
    assert code == 0, output
    return sweep, output


@pytest.fixture
def sweep(finished, tmp_path) -> Sweep:
    """A copy of the finished sweep to do things to."""
    original, _ = finished
    shutil.copytree(original.directory, tmp_path / "copy", copy_function=shutil.copy2, symlinks=True)
    (tmp_path / "cache").symlink_to(original.directory.parent / "cache")
    for name in ("tiny",):  # copytree sets a directory's time before it fills it
        shutil.copystat(original.directory / f"results/cells/{name}", tmp_path / f"copy/results/cells/{name}")
    copy = Sweep(tmp_path / "copy", yaml.safe_load(original.config_file.read_text()))
    yield copy
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(copy.directory):
                process.kill()


@pytest.fixture
def fresh(finished, tmp_path) -> Sweep:
    """An empty directory with the same config, on a port of its own; the model is there already."""
    (tmp_path / "cache").symlink_to(finished[0].directory.parent / "cache")
    (tmp_path / "new").mkdir()
    new = Sweep(tmp_path / "new", small_config(free_port()))
    yield new
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(new.directory):
                process.kill()
