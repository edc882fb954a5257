"""The whole published table replayed on the truth server: `PYTHONPATH=scripts python -m bench.seed_replay [speed-up]`.

Prints each cell's error against what was programmed, and the worst of each kind. About 8 minutes at a speed-up of 5.
"""

import sys
import time

from speedmatrix.cells import Cell, size_name
from tests.accuracy.truth import Truth, serving

CONTEXTS = [8, 16, 32, 64, 128, 251]
LANES = [1, 2, 4, 8, 16, 32, 64, 128]


def decode_errors(truth: Truth, cell: Cell) -> dict[str, float]:
    """Relative errors of total, time between tokens and TTFT (that one beyond 5 ms)."""
    seen, told = truth.measure(cell)
    figures, total = seen.figures, truth.total_tok_s(cell)
    ttft = truth.ttft_ms(cell, told)
    return {
        "total": figures["total_tok_s"] / total - 1,
        "itl": figures["itl_ms"] / (1000 * cell.concurrency / total) - 1,
        "ttft": max(0.0, abs(figures["ttft_ms"] - ttft) - 5) / ttft,
        "server": (figures["server_diff_pct"] or 0) / 100,
    }


def main(speedup: float) -> None:
    began = time.monotonic()
    worst: dict[str, float] = {}
    over = 0
    with serving(speedup) as truth:
        for context in [8, 16, 32, 64, 128, 251, 256]:
            cell = Cell("truth", "prefill", context * 1024)
            seen, _ = truth.measure(cell)
            right = 1000 * truth.speeds.chunk(seen.figures["prompt_tokens"], seen.figures["prompt_tokens"])
            error = seen.figures["ttft_ms"] / right - 1
            worst["prefill"] = max(worst.get("prefill", 0), abs(error))
            print(f"prefill {size_name(cell.context):>5}: {error:+.3%}", flush=True)
        for context in CONTEXTS:
            for lanes in LANES:
                cell = Cell("truth", "decode", context * 1024, lanes)
                if not truth.fits(cell):
                    over += 1
                    continue
                errors = decode_errors(truth, cell)
                worst |= {key: max(worst.get(key, 0), abs(value)) for key, value in errors.items()}
                print(f"decode {context:>4}K x{lanes:<3}:", *(f"{k} {v:+.3%}" for k, v in errors.items()), flush=True)
    print(f"worst: {', '.join(f'{key} {value:.3%}' for key, value in worst.items())}")
    print(f"{over} cells over capacity; {time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5)
