"""Energy of a real cell, with GPUs whose power is programmed (programmed_gpu.py): by calculus, not by what was seen."""

import sys

import pytest

from speedmatrix import integration, measure, telemetry, tokenizing
from speedmatrix.cells import Cell
from speedmatrix.config import parse
from tests.accuracy import programmed_gpu
from tests.accuracy.truth import TRIES, Truth, serving

SAMPLER = [sys.executable, "-m", "tests.accuracy.programmed_gpu", "--port", "9"]


def measured(truth: Truth, cell: Cell) -> measure.Measured:
    """The cell as measured; whether the server keeps its own time does not matter here."""
    engine = truth.engine
    engine.dialect = tokenizing.find_dialect(engine, {})
    keys = {"duration_s": 1.3, "settle_s": 0.2, "prefill_repeats": 2}
    config = parse({"servers": {"truth": {"engine": "vllm", "url": truth.url}}, "measure": keys})
    return measure.run(measure.Task(cell, config.measure, engine, engine.facts().capacity))


@pytest.mark.parametrize(
    "cell", [Cell("truth", "decode", 8192, 4), Cell("truth", "prefill", 32768)], ids=lambda c: c.name
)
def test_energy_over_the_exact_window(cell):
    with serving(5) as truth:
        for _ in range(TRIES):
            with telemetry.running(SAMPLER) as recording:
                seen = measured(truth, cell)
            window = integration.window_of(seen.run, seen.figures.get("output_tokens"))
            told = recording.telemetry(window)
            if told["samples"] > 8 * window.seconds:  # else this machine held the sampler up
                break
    right_j = 2 * (programmed_gpu.energy_j(window.t1_ns) - programmed_gpu.energy_j(window.t0_ns))
    # A window that is no whole number of swings, so that it matters where exactly it lies: half a swing off is 30 %.
    assert told["energy_j"] == pytest.approx(right_j, rel=0.01)
    assert told["power_avg_w"] == pytest.approx(right_j / window.seconds, rel=0.01)
    tokens = seen.figures["output_tokens"] if cell.phase == "decode" else 2 * 32768
    assert told["tok_per_j"] == pytest.approx(tokens / right_j, rel=0.01)
    assert (told["gpus"], told["energy_by"], told["throttle"]) == ([0, 1], "counter+power", "ok")
