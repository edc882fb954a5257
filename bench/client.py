"""What the measuring client itself costs and how true it stays: `PYTHONPATH=scripts python -m bench.client`.

Measures a token source of known speed (bench/token_source.py) with the product's own path. The source has one core,
the measuring process another.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import requests

from speedmatrix import measure, tokenizing
from speedmatrix.cells import Cell
from speedmatrix.config import parse
from speedmatrix.engines import engine_for

ROOT = Path(__file__).parents[1]
LANES = (8, 32, 128, 512)
RATES = (12_800, 30_000, 60_000, 100_000)


@dataclass(frozen=True)
class Row:
    """One measurement: rates in tok/s, `cpu_us` a token, errors against the source's schedule."""

    tool: str
    lanes: int
    true_tok_s: float
    tok_s: float
    itl_error: float
    ttft_error_ms: float
    cpu_us: float | None
    client_bound: bool | None
    late_ms: float

    def __str__(self) -> str:
        cpu = "" if self.cpu_us is None else f"{self.cpu_us:5.1f} µs"
        bound = {None: "", True: "client_bound", False: "-"}[self.client_bound]
        return (
            f"{self.tool:14} {self.lanes:4} {self.true_tok_s:9,.0f} {self.tok_s:9,.0f} {self.itl_error:+8.2%} "
            f"{self.ttft_error_ms:+8.2f} ms {cpu:>9} {self.late_ms:7.1f} ms  {bound}"
        )


@contextlib.contextmanager
def source() -> Iterator[str]:
    """A token source on the machine's last core; this process keeps to the first."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    cores = sorted(os.sched_getaffinity(0))
    process = subprocess.Popen([sys.executable, "-m", "bench.token_source", "--port", str(port)], cwd=ROOT)
    os.sched_setaffinity(process.pid, {cores[-1]})
    os.sched_setaffinity(0, {cores[0]})
    url = f"http://127.0.0.1:{port}"
    try:
        while process.poll() is None:
            with contextlib.suppress(requests.RequestException):
                requests.get(f"{url}/health", timeout=1)
                break
            time.sleep(0.05)
        yield url
    finally:
        process.kill()
        process.wait()
        os.sched_setaffinity(0, cores)


def ours(url: str, lanes: int, rate: float, duration_s: float = 5) -> Row:
    """A decode cell through measure.run."""
    settings = {"duration_s": duration_s, "settle_s": 0.5, "max_output_tokens": 10**6}
    config = parse({"servers": {"source": {"engine": "vllm", "url": url}}, "measure": settings})
    engine = engine_for(config.servers["source"])
    engine.dialect = tokenizing.find_dialect(engine, {})
    task = measure.Task(Cell("source", "decode", 16, lanes), config.measure, engine, engine.facts().capacity)
    requests.post(f"{url}/speed", json={"step_ms": 1000 * lanes / rate}, timeout=10)
    seen = measure.run(task)
    truth = requests.get(f"{url}/truth", timeout=10).json()
    figures, client = seen.figures, seen.client or {}
    return Row(
        tool="speed-matrix",
        lanes=lanes,
        true_tok_s=rate,
        tok_s=figures["total_tok_s"],
        itl_error=figures["itl_ms"] / (1000 * lanes / rate) - 1,
        ttft_error_ms=figures["ttft_ms"] - float(np.median(truth["ttft_ms"][:lanes])),
        cpu_us=(client["cpu_share"] or 0) * 1e6 / figures["total_tok_s"],
        client_bound="client_bound" in seen.flags,
        late_ms=truth["late_max_ms"],
    )


def main() -> None:
    print("tool          lanes     truth     taken  ITL error  TTFT error  CPU/token  source late")
    with source() as url:
        for lanes in LANES:
            for rate in RATES:
                print(ours(url, lanes, rate), flush=True)


if __name__ == "__main__":
    main()
