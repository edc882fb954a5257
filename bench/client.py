"""What the measuring client itself costs and how true it stays: `PYTHONPATH=scripts python -m bench.client`.

Measures a token source of known speed (bench/token_source.py) with the product's own path. The source has one core,
the measuring process another. With `--tokenizer DIR`, any small tokenizer, `vllm bench serve` and AIPerf are put beside
it where they are on PATH or at `--vllm PATH` and `--aiperf PATH`, each with as many requests as lanes and the tokens of
the same window; their time between tokens is the median of TPOT and of the requests' inter-token latency.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
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


@dataclass(frozen=True)
class Load:
    """What another tool is asked to put on the source: as many requests as lanes, each so many tokens long."""

    url: str
    lanes: int
    tokens: int
    tokenizer: str
    directory: Path


def theirs(tool: str, load: Load, rate: float, run: Callable[[Load], dict[str, float]]) -> Row:
    """A row of another tool; `run` gives its tok_s, itl_ms, ttft_ms and cpu_us."""
    step_ms = 1000 * load.lanes / rate
    requests.post(f"{load.url}/speed", json={"step_ms": step_ms}, timeout=10)
    told = run(load)
    truth = requests.get(f"{load.url}/truth", timeout=10).json()
    return Row(
        tool=tool,
        lanes=load.lanes,
        true_tok_s=rate,
        tok_s=told["tok_s"],
        itl_error=told["itl_ms"] / step_ms - 1,
        ttft_error_ms=told["ttft_ms"] - float(np.median(truth["ttft_ms"][-load.lanes :])),
        cpu_us=told["cpu_us"],
        client_bound=None,
        late_ms=truth["late_max_ms"],
    )


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds that a process and all below it have used so far."""
    used = 0.0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            used += sum(one.cpu_times()[:2])
    return used


def watched(command: list[str], load: Load) -> float:
    """Run a tool to its end. CPU µs a token of all its processes, over the time in which its streams run."""
    seen = [(0.0, 0)]
    with (load.directory / "log").open("w") as log, psutil.Popen(command, stdout=log, stderr=log) as process:
        while process.poll() is None:
            told = dict(line.split() for line in requests.get(f"{load.url}/metrics", timeout=10).text.splitlines())
            if told["vllm:num_requests_running"] != "0":
                seen.append((cpu_s(process), int(told["vllm:generation_tokens_total"])))
            time.sleep(0.1)
    if process.returncode or len(seen) < 3:
        raise SystemExit(f"{command[0]} failed: {(load.directory / 'log').read_text().strip()[-500:]}")
    (cpu0, tokens0), (cpu1, tokens1) = seen[1], seen[-1]
    return 1e6 * (cpu1 - cpu0) / (tokens1 - tokens0)


def vllm(program: str) -> Callable[[Load], dict[str, float]]:
    """`vllm bench serve`."""

    def run(load: Load) -> dict[str, float]:
        lanes, name = str(load.lanes), "vllm.json"
        command = [program, "bench", "serve", "--backend", "openai", "--base-url", load.url, "--model", "truth"]
        command += ["--tokenizer", load.tokenizer, "--dataset-name", "random", "--random-input-len", "16"]
        command += ["--random-output-len", str(load.tokens), "--num-prompts", lanes, "--max-concurrency", lanes]
        command += ["--ignore-eos", "--save-result", "--result-dir", str(load.directory), "--result-filename", name]
        cpu_us = watched(command, load)
        told = json.loads((load.directory / name).read_text())
        return {
            "tok_s": told["output_throughput"],
            "itl_ms": told["median_tpot_ms"],
            "ttft_ms": told["median_ttft_ms"],
            "cpu_us": cpu_us,
        }

    return run


def aiperf(program: str) -> Callable[[Load], dict[str, float]]:
    """AIPerf, with the server's token counts."""

    def run(load: Load) -> dict[str, float]:
        lanes = str(load.lanes)
        command = [program, "profile", "-m", "truth", "--url", load.url, "--endpoint-type", "completions"]
        command += ["--streaming", "--concurrency", lanes, "--request-count", lanes, "--isl", "16"]
        command += ["--osl", str(load.tokens), "--tokenizer", load.tokenizer, "--use-server-token-count"]
        command += ["--extra-inputs", "ignore_eos:true", "--ui", "none", "--artifact-dir", str(load.directory)]
        cpu_us = watched(command, load)
        told = json.loads((load.directory / "profile_export_aiperf.json").read_text())
        return {
            "tok_s": told["output_token_throughput"]["avg"],
            "itl_ms": told["inter_token_latency"]["p50"],
            "ttft_ms": told["time_to_first_token"]["p50"],
            "cpu_us": cpu_us,
        }

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", default="vllm", help="the vllm program")
    parser.add_argument("--aiperf", default="aiperf", help="the aiperf program")
    parser.add_argument("--tokenizer", help="a directory with a tokenizer, for the other tools")
    parser.add_argument("--lanes", type=int, nargs="+", default=LANES)
    parser.add_argument("--rates", type=int, nargs="+", default=RATES)
    given = parser.parse_args()
    others = {"vllm bench": (vllm, shutil.which(given.vllm)), "aiperf": (aiperf, shutil.which(given.aiperf))}
    for tool, (_, program) in others.items():
        if not (program and given.tokenizer):
            print(f"{tool}: not measured: {'not installed' if not program else 'give --tokenizer'}")
    print("tool           lanes     truth     taken ITL error TTFT error CPU/token source late")
    with source() as url:
        for lanes in given.lanes:
            for rate in given.rates:
                print(ours(url, lanes, rate), flush=True)
                for tool, (make, program) in others.items():
                    if program and given.tokenizer:
                        with tempfile.TemporaryDirectory() as directory:
                            load = Load(url, lanes, round(5 * rate / lanes), given.tokenizer, Path(directory))
                            print(theirs(tool, load, rate, make(program)), flush=True)


if __name__ == "__main__":
    main()
