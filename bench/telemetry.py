"""What sampling costs the measurement: `PYTHONPATH=scripts python -m bench.telemetry`.

The same two cells of the truth server, with and without a sampler beside them, in pairs whose order alternates: once
with the sampler of this host as it is, once over 8 constructed GPUs (tests/accuracy/programmed_gpu.py), which stand for
the sampler's own work but not for the driver's. The median of the ten pairs' differences, with its 98 % interval.
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import sys
from collections.abc import Iterator

from speedmatrix import telemetry
from speedmatrix.cells import Cell
from tests.accuracy.truth import Truth, serving

CELLS = {
    Cell("truth", "decode", 8192, 16): ("total_tok_s", "itl_ms", "itl_p99_ms", "ttft_ms"),
    Cell("truth", "prefill", 8192): ("ttft_ms",),
}
SAMPLERS = {"this host": "speedmatrix.sampling", "8 constructed GPUs": "tests.accuracy.programmed_gpu"}
PAIRS, PATIENCE = 10, 5


def interval(differences: list[float]) -> tuple[float, float]:
    """The second smallest and the second largest: of ten, they hold the median with 98 % (1 − 2 × 11 / 2¹⁰)."""
    ordered = sorted(differences)
    return ordered[1], ordered[-2]


@contextlib.contextmanager
def sampling(module: str | None, used: list[float]) -> Iterator[None]:
    """Sample beside what is measured inside; the sampler's CPU seconds are added to `used`. None: do not."""
    if module is None:
        yield
        return
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with telemetry.running([sys.executable, "-m", module, "--port", "9"]) as recording:
        yield
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if recording.taken.failed:
        raise SystemExit(f"no samples: {recording.taken.failed}")
    used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def figures(truth: Truth, cell: Cell, module: str | None, used: list[float]) -> dict[str, float]:
    """The cell as measured; anew where something else on this machine made the truth server itself late."""
    for _ in range(PATIENCE):
        with contextlib.suppress(AssertionError), sampling(module, used):
            return truth.measure(cell, prefill_repeats=3)[0].figures
    raise SystemExit("this machine is too busy: the truth server was late again and again")


def compare(truth: Truth, cell: Cell, module: str) -> None:
    """Measure the pairs of a cell and print a line for each figure."""
    seen: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    used: list[float] = []
    for pair in range(PAIRS):
        for sampled in (True, False) if pair % 2 else (False, True):
            seen[sampled].append(figures(truth, cell, module if sampled else None, used))
    print(f"  {cell.name}: the sampler used {statistics.median(used):.2f} s of a core a cell")
    for name in CELLS[cell]:
        both = zip(seen[True], seen[False], strict=True)
        differences = [100 * (with_it[name] - without[name]) / without[name] for with_it, without in both]
        low, high = interval(differences)
        usual = statistics.median(one[name] for one in seen[False])
        print(
            f"    {name:12} {usual:10.2f}  {statistics.median(differences):+.3f} % ({low:+.3f} to {high:+.3f})",
            flush=True,
        )


def main() -> None:
    os.environ["PROGRAMMED_GPUS"] = "8"
    for name, module in SAMPLERS.items():
        print(name)
        with serving(5) as truth:
            for cell in CELLS:
                compare(truth, cell, module)


if __name__ == "__main__":
    main()
