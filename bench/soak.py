"""A sweep of 60 cells to which something happens every few cells: `PYTHONPATH=scripts python -m bench.soak [seed]`.

The server's speeds are programmed (tests/truth_server), so that each cell's right figure is known. Faults are drawn
with the seed and printed. As a person would, it unlocks after a SIGKILL, deletes a file that is said to be damaged, and
runs the same command again. It ends when every cell is measured, and tells wrong figures, lost cells, processes left.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import requests
import yaml

from tests.truth_server import speeds

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests/data/seed_measurements.csv"
SPEEDUP, WINDOW_S, FAULTS = 10, 1.0, 24
CONTEXTS = [512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192]
LANES = [1, 2, 4, 8, 16, 32]
WRONG = 0.02  # off the programmed speed and off the server's own count by more


class Soak:
    """The sweep's directory, its server's port, and the run under way."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory, self.random = directory, random.Random(seed)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.run: subprocess.Popen[bytes] | None = None
        (directory / "sweep.yaml").write_text(yaml.safe_dump(self._config()))

    def _config(self) -> dict:
        command = ["{python}", "-m", "tests.truth_server", "--port", self.port, "--table", str(TABLE)]
        launch = {"command": [*command, "--speedup", SPEEDUP], "env": {"PYTHONPATH": str(ROOT)}, "max_launches": 9}
        return {
            "servers": {"truth": {"engine": "vllm", "url": f"http://127.0.0.1:{self.port}", "launch": launch}},
            "matrix": {"prefill": {"contexts": []}, "decode": {"contexts": CONTEXTS, "concurrency": LANES}},
            "measure": {"duration_s": WINDOW_S, "settle_s": 0.1, "stall_s": 5},
        }

    def snakemake(self, *more: str, target: str = "results/report.html") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "1"]
        files = ["--configfile", str(self.directory / "sweep.yaml"), "--directory", str(self.directory)]
        log = (self.directory / "soak.log").open("ab")
        return subprocess.Popen([*command, target, *files, *more], stdout=log, stderr=log, start_new_session=True)

    def cells(self) -> dict[str, dict]:
        """The cells that are there and whole."""
        found = {}
        for path in self.directory.glob("results/cells/truth/*.json"):
            with contextlib.suppress(ValueError, OSError):
                found[path.stem] = json.loads(path.read_text())
        return found

    def valid(self) -> set[str]:
        return {name for name, cell in self.cells().items() if cell["status"] == "valid"}

    # What a person does between two runs.

    def go_on(self) -> None:
        """Clear what the last run's end asks for, and start the same command again."""
        if self.run is not None and self.run.returncode in (-signal.SIGKILL, -signal.SIGHUP):
            self.snakemake("--unlock").wait(60)
        for path in self.directory.glob("results/cells/truth/*.json"):
            try:
                json.loads(path.read_text())
            except ValueError:
                path.unlink()
        self.run = self.snakemake()

    # What happens to it.

    def fault(self) -> str:
        """Do one, drawn; returns what it was."""
        kinds: list[Callable[[], str]] = [
            self._signal, self._signal, self._server, self._supervisor, self._both, self._measurer, self._cut,
            self._delete, self._streams,
        ]  # fmt: skip
        try:
            return self.random.choice(kinds)()
        except (psutil.Error, OSError, ValueError, requests.RequestException) as error:
            return f"nothing ({type(error).__name__}: it was between two states)"

    def _signal(self) -> str:
        number = self.random.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
        assert self.run is not None
        os.kill(self.run.pid, number)
        return f"{number.name} to snakemake"

    def _state(self) -> dict:
        return dict(json.loads((self.directory / ".speedmatrix/state.json").read_text()))

    def _server(self) -> str:
        os.kill(int(self._state()["pid"]), signal.SIGKILL)
        return "SIGKILL to the server"

    def _supervisor(self) -> str:
        os.kill(int(self._state()["boot_id"].split(":")[0]), signal.SIGKILL)
        return "SIGKILL to the supervisor"

    def _both(self) -> str:
        assert self.run is not None
        self._supervisor()
        self.run.kill()
        return "SIGKILL to the supervisor and to snakemake"

    def _measurer(self) -> str:
        process = next(p for p in self.processes() if "cell.py" in " ".join(p.cmdline()))
        if self.random.random() < 0.5:
            process.kill()
            return "SIGKILL to the measuring process"
        process.suspend()
        time.sleep(2.5)
        process.resume()
        return "the measuring process stopped for 2.5 s"

    def _cell(self) -> Path:
        return self.directory / f"results/cells/truth/{self.random.choice(sorted(self.cells()))}.json"

    def _cut(self) -> str:
        path = self._cell()
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        return f"{path.name} cut in half"

    def _delete(self) -> str:
        path = self._cell()
        path.unlink()
        return f"{path.name} deleted"

    def _streams(self) -> str:
        what = self.random.choice([{"error_after": 3}, {"cut_after": 3}, {"stall_after": 3}])
        requests.post(f"http://127.0.0.1:{self.port}/faults", json=what, timeout=5)
        time.sleep(1.5)
        requests.post(f"http://127.0.0.1:{self.port}/faults", json={}, timeout=5)
        return f"streams: {what}"

    def processes(self) -> list[psutil.Process]:
        """All that runs for this directory."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cwd() == str(self.directory) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    # The whole.

    def soak(self) -> tuple[int, int, int]:
        """(faults, runs, cells that were valid once and are not there at the end)."""
        done, runs, once = 0, 0, set[str]()
        next_fault = time.monotonic() + self.random.uniform(4, 9)
        while len(self.valid()) < len(CONTEXTS) * len(LANES) or self.run is None or self.run.poll() is None:
            if self.run is None or self.run.poll() is not None:
                self.go_on()
                runs += 1
            once |= self.valid()
            if done < FAULTS and time.monotonic() > next_fault:
                done += 1
                print(f"{done:3} {len(self.valid()):3} cells valid: {self.fault()}", flush=True)
                next_fault = time.monotonic() + self.random.uniform(4, 9)
            time.sleep(0.2)
        return done, runs, len(once - self.valid())

    def wrong(self) -> list[str]:
        """Cells whose total is off what is programmed and off what the server itself counted."""
        programmed, found = speeds.from_table(TABLE, SPEEDUP), []
        for name, cell in self.cells().items():
            right = cell["concurrency"] / programmed.step(cell["context_tokens"], cell["concurrency"])
            off = cell["figures"]["total_tok_s"] / right - 1
            if abs(off) > WRONG and abs(cell["figures"]["server_diff_pct"] or 100) > 100 * WRONG:
                found.append(f"{name} {100 * off:+.1f} %")
        return found


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    with tempfile.TemporaryDirectory() as name:
        soak, began = Soak(Path(name), seed), time.monotonic()
        faults, runs, lost = soak.soak()
        took, wrong = time.monotonic() - began, soak.wrong()
        deadline = time.monotonic() + 5
        while (left := soak.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        checked = soak.snakemake(target="check").wait(120)
        print(f"seed {seed}: {len(soak.valid())} cells, {faults} faults, {runs} runs in {took:.0f} s")
        print(f"{len(wrong)} wrong figures, {lost} lost cells, {len(left)} processes left, check: {checked}", *wrong)
    sys.exit(bool(wrong or lost or left or checked))


if __name__ == "__main__":
    main()
