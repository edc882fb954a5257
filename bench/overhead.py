"""What a cell costs beside what its method needs: `PYTHONPATH=scripts python -m bench.overhead`.

Runs a sweep of 24 decode cells for real, on the truth server at ten times the published table's speed, and takes from
its wall time the windows, settling, and the prefill of each cell's prompts. Snakemake's own start is told apart.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from tests.accuracy.truth import serving

ROOT = Path(__file__).parents[1]
WINDOW_S, SETTLE_S = 1.0, 0.2
CONTEXTS, LANES = [512, 1024, 2048, 4096], [1, 2, 4, 8, 16, 32]


def sweep(directory: Path, url: str, contexts: list[int]) -> float:
    """Seconds that snakemake takes for all cells of `contexts`."""
    config = {
        "servers": {"truth": {"engine": "vllm", "url": url}},
        "matrix": {"prefill": {"contexts": []}, "decode": {"contexts": contexts, "concurrency": LANES}},
        "measure": {"duration_s": WINDOW_S, "settle_s": SETTLE_S},
    }
    file = directory / "sweep.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "1"]
    began = time.monotonic()
    subprocess.run(
        [*command, "results/measurements.csv", "--configfile", str(file), "--directory", str(directory)],
        check=True,
        capture_output=True,
    )
    return time.monotonic() - began


def needed_s(directory: Path) -> tuple[int, float]:
    """(cells that were measured, seconds that they need by the method: prefill of all lanes, settling, window)."""
    cells = [json.loads(path.read_text()) for path in directory.glob("results/cells/truth/*.json")]
    measured = [cell for cell in cells if cell["figures"]]
    slowest_first = sum(cell["figures"]["ttft_p99_ms"] / 1000 for cell in measured)
    return len(measured), slowest_first + len(measured) * (WINDOW_S + SETTLE_S)


def main() -> None:
    with serving(10) as truth, tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        sweep(directory, truth.url, CONTEXTS[:1])
        nothing = sweep(directory, truth.url, CONTEXTS[:1])
        before = needed_s(directory)
        took = sweep(directory, truth.url, CONTEXTS)
        after = needed_s(directory)
    cells, needed = after[0] - before[0], after[1] - before[1]
    print(f"snakemake with nothing to do: {nothing:.1f} s")
    print(f"{cells} cells: {took:.1f} s, of which the method needs {needed:.1f} s")
    print(f"overhead a cell: {(took - nothing - needed) / cells:.2f} s")


if __name__ == "__main__":
    main()
