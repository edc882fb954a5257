"""Measuring the truth server: one cell, with what it should have come out as."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import requests

from speedmatrix import measure, tokenizing
from speedmatrix.cells import Capacity, Cell, plan
from speedmatrix.config import Server, parse
from speedmatrix.engines import Vllm
from tests.truth_server import speeds

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests/data/seed_measurements.csv"
TRIES = 3


@dataclass
class Truth:
    """A running truth server and the speeds it was given."""

    url: str
    speeds: speeds.Speeds
    tokens_per_event: int
    verify_tls: bool | str = True

    @property
    def engine(self) -> Vllm:
        return Vllm(
            Server("truth", "vllm", self.url, None, None, None, {}, Capacity(), None, verify_tls=self.verify_tls)
        )

    def faults(self, **faults) -> None:
        """What goes wrong from now on, and nothing else (tests/truth_server/faults.py)."""
        self._ask("POST", "/faults", json=faults)

    def told(self) -> dict:
        """What the server says of itself since the last measurement began."""
        return self._ask("GET", "/truth").json()

    def _ask(self, method: str, path: str, **more) -> requests.Response:
        return requests.request(method, self.url + path, timeout=10, verify=self.verify_tls, **more)

    def measure(
        self, cell: Cell, engine: Vllm | None = None, window_only: bool = False, **keys
    ) -> tuple[measure.Measured, dict]:
        """The cell as measured, and what the server says of itself; measured again where the server was late.

        `window_only`: where no first token's time is asked for, being late before the window does no harm.
        """
        settings = {"duration_s": 3, "settle_s": 0.2, "prefill_repeats": 1} | keys
        raw = {"servers": {"truth": {"engine": "vllm", "url": self.url}}, "measure": settings}
        engine = engine or self.engine
        engine.dialect = tokenizing.find_dialect(engine, {})
        task = measure.Task(cell, parse(raw).measure, engine, engine.facts().capacity)
        for _ in range(TRIES):
            self._ask("POST", "/truth")
            seen = measure.run(task)
            told = self.told()
            late = [ms for at, ms in told["late"] if not window_only or seen.run.t0_ns <= at * 1e9 <= seen.run.t1_ns]
            if not late:
                return seen, told
        raise AssertionError(f"the truth server was late by {max(late):.1f} ms, {TRIES} times in a row")

    def total_tok_s(self, cell: Cell) -> float:
        return cell.concurrency / self.speeds.step(cell.context, cell.concurrency)

    def ttft_ms(self, cell: Cell, told: dict) -> float:
        """Median over the first C requests, as the server scheduled them."""
        return float(np.median(told["ttft_ms"][: cell.concurrency]))

    def fits(self, cell: Cell, max_output: int = 4096) -> bool:
        return plan(cell, max_output, self.engine.facts().capacity).status is None


@contextlib.contextmanager
def serving(
    speedup: float, *options: str, tokens_per_event: int = 1, at: str = "http://127.0.0.1", tls: Path | None = None
) -> Iterator[Truth]:
    """A truth server with the published table's speeds, in a process of its own; `at`: its address without the port."""
    host = urlsplit(at).hostname
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "tests.truth_server", "--port", str(port), "--table", str(TABLE), "--host", host]
    command += ["--speedup", str(speedup), "--tokens-per-event", str(tokens_per_event), *options]
    command += ["--tls", str(tls)] if tls else []
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            assert process.poll() is None, "the truth server ended"
            with contextlib.suppress(OSError):
                socket.create_connection((host, port), timeout=1).close()
                break
            time.sleep(0.05)
        yield Truth(f"{at}:{port}", speeds.from_table(TABLE, speedup), tokens_per_event, str(tls) if tls else True)
    finally:
        process.kill()
        process.wait()
