"""A cell's telemetry from a series of readings: power, energy and the rest over its exact window. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from speedmatrix.arrivals import Run
from speedmatrix.readings import HOST, NOT_SLOWED, SECOND, SLOWDOWNS, Reading
from speedmatrix.series import MIN_SAMPLES, Absent, Series, Window

OK, NO_DATA = "ok", "no data"
SLOWED_SHARE = 0.05  # of a GPU's samples, from which on a cell is said to be slowed down
FIGURES = [
    *("power_avg_w", "power_max_w", "energy_j", "tok_per_j", "j_per_tok", "gpu_temp_max_c", "gpu_util_avg_pct"),
    *("gpu_memory_max_bytes", "sm_clock_avg_mhz", "mem_clock_avg_mhz", "pcie_rx_avg_mb_s", "pcie_tx_avg_mb_s"),
    *("cpu_load_avg_pct", "cpu_temp_max_c", "cpu_energy_j", "server_memory_max_bytes"),
]


@dataclass(frozen=True)
class Taken:
    """What a sampler left. `gpus`: the indexes that count, `by`: how that is known; `sliced`: those cut by MIG.

    `why` holds, by device, why readings are None; `failed` why there are none or no more at all.
    """

    readings: list[Reading] = field(default_factory=list)
    source: str | None = None
    gpus: tuple[int, ...] = ()
    by: str | None = None
    sliced: tuple[int, ...] = ()
    why: dict[str, Any] = field(default_factory=dict)
    failed: str | None = None


def window_of(run: Run, output_tokens: float | None) -> Window | None:
    """The time that telemetry is integrated over.

    Decode: the cell's window. Prefill: from the first measured request's start to the last one's first token, the
    moments between requests included. None where there is none.
    """
    if run.t1_ns:
        return Window(run.t0_ns, run.t1_ns, output_tokens)
    if not run.streams or not run.streams[-1].t_ns:
        return None
    prompts = [stream.prompt_tokens for stream in run.streams]
    tokens = None if None in prompts else float(sum(count or 0 for count in prompts))
    return Window(run.streams[0].started_ns, run.streams[-1].t_ns[0], tokens)


def summary(taken: Taken, window: Window) -> dict[str, Any]:
    """A cell's `telemetry`: each figure, or None and its reason in `absent`, or in `reason` where nothing was read.

    energy_j: Σ over GPUs of the energy counter's rise, or of ∫ power dt where it has none; of the CPU's RAPL counters
    on a host without GPUs. power_avg_w = energy_j / window. power_max_w: highest sum of the GPUs' samples, or of the
    CPU between two of them. tok_per_j, j_per_tok: the window's tokens and its energy. Temperatures are the hottest
    device's, clocks and utilisation the time average and mean over GPUs, memory the sum of each GPU's highest, PCIe
    the sum of each GPU's mean in MB/s.
    """
    figures, absent = _asked(_calls(taken, window))
    by_energy, why = _by_energy(figures["energy_j"], window)
    figures |= by_energy
    absent = dict.fromkeys(by_energy, absent.get("energy_j", why)) | absent
    times = sorted({one.t_ns for one in taken.readings if one.device == HOST})
    within = [t for t in times if window.t0_ns <= t < window.t1_ns]
    verdict, shares = _throttle(taken, window)
    return {
        "source": _source(taken, figures["cpu_energy_j"]),
        "reason": taken.failed,
        "gpus": list(taken.gpus),
        "gpus_by": taken.by,
        "energy_by": None if figures["energy_j"] is None else _energy_by(taken, window),
        "samples": len(within),
        "interval_s": round(float(np.median(np.diff(within))) / SECOND, 4) if len(within) > 1 else None,
        "window_s": window.seconds,
        **{name: figures[name] for name in FIGURES},
        "throttle": verdict,
        "throttle_share_pct": shares,
        "absent": {name: absent[name] for name in FIGURES if figures[name] is None and taken.readings},
        "series": None,
    }


def _by_energy(energy_j: float | None, window: Window) -> tuple[dict[str, float | None], str]:
    """(what follows from the energy, why there is less of it where no other reason is known)."""
    if not energy_j:
        return dict.fromkeys(("energy_j", "power_avg_w", "tok_per_j", "j_per_tok")), "the energy counter did not rise"
    figures = {"energy_j": energy_j, "power_avg_w": energy_j / window.seconds, "tok_per_j": None, "j_per_tok": None}
    if window.tokens:
        figures |= {"tok_per_j": window.tokens / energy_j, "j_per_tok": energy_j / window.tokens}
    return figures, "how many tokens there were is not known"


def _source(taken: Taken, cpu_energy_j: float | None) -> str | None:
    """Whose word power and energy are; `host` where only load and memory are known."""
    if not taken.readings:
        return None
    return taken.source if taken.gpus else "host" if cpu_energy_j is None else "rapl"


def _asked(calls: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    figures: dict[str, Any] = dict.fromkeys(calls)
    absent = {}
    for name, call in calls.items():
        try:
            figures[name] = call()
        except Absent as reason:
            absent[name] = str(reason)
    return figures, absent


def _calls(taken: Taken, window: Window) -> dict[str, Any]:
    """Each figure as a call that gives it or raises Absent."""

    def gpus(name: str) -> list[Series]:
        if not taken.gpus:
            raise Absent(taken.failed or str(taken.why.get("gpus") or "no GPU of this host is the server's"))
        return [_series(taken, f"gpu{index}", name) for index in taken.gpus]

    def host(name: str) -> Series:
        return _series(taken, HOST, name)

    def mean(series: list[Series]) -> float:
        return float(np.mean([one.covering(window).integral(window) / window.seconds for one in series]))

    def highest(series: list[Series]) -> list[float]:
        return [float(one.inside(window).max()) for one in series]

    def pcie(name: str) -> float:
        return float(sum(one.inside(window).mean() for one in gpus(name)))

    return {
        "energy_j": lambda: _energy_j(taken, window),
        "power_max_w": lambda: (
            _power_max_w(gpus("power_w"), window) if taken.gpus else host("energy_j").steepest(window)
        ),
        "gpu_temp_max_c": lambda: max(highest(gpus("temp_c"))),
        "gpu_util_avg_pct": lambda: mean(gpus("util_pct")),
        "gpu_memory_max_bytes": lambda: round(sum(highest(gpus("memory_used_bytes")))),
        "sm_clock_avg_mhz": lambda: mean(gpus("sm_clock_mhz")),
        "mem_clock_avg_mhz": lambda: mean(gpus("mem_clock_mhz")),
        "pcie_rx_avg_mb_s": lambda: pcie("pcie_rx_mb_s"),
        "pcie_tx_avg_mb_s": lambda: pcie("pcie_tx_mb_s"),
        "cpu_load_avg_pct": lambda: mean([host("util_pct")]),
        "cpu_temp_max_c": lambda: max(highest([host("temp_c")])),
        "cpu_energy_j": lambda: host("energy_j").covering(window).rise(window),
        "server_memory_max_bytes": lambda: round(max(highest([host("memory_used_bytes")]))),
    }


def _series(taken: Taken, device: str, name: str) -> Series:
    own = [one for one in taken.readings if one.device == device]
    told = [(one.t_ns, getattr(one, name)) for one in own if getattr(one, name) is not None]
    reasons = taken.why.get(device, {})
    why = reasons.get("lost") or taken.failed or reasons.get(name) or ("" if told else "not told")
    t_ns, values = zip(*told, strict=True) if told else ((), ())
    shown = f"{device}: {why}" if why and device != HOST else why
    return Series(f"{device} {name}", np.array(t_ns, np.int64), np.array(values, float), shown)


def _energy_j(taken: Taken, window: Window) -> float:
    if not taken.gpus:
        return _series(taken, HOST, "energy_j").covering(window).rise(window)
    if taken.sliced:
        raise Absent(f"gpu{taken.sliced[0]} is cut into MIG slices: its power is not the server's alone")
    return sum(_gpu_energy_j(taken, index, window)[0] for index in taken.gpus)


def _gpu_energy_j(taken: Taken, index: int, window: Window) -> tuple[float, str]:
    """(joules of one GPU, by what: its energy counter, or samples of its power). Raises Absent."""
    counter, power = (_series(taken, f"gpu{index}", name) for name in ("energy_j", "power_w"))
    if len(counter.values):
        return counter.covering(window).rise(window), "counter"
    return power.covering(window).integral(window), "power"


def _energy_by(taken: Taken, window: Window) -> str:
    if not taken.gpus:
        return "counter"
    return "+".join(sorted({_gpu_energy_j(taken, index, window)[1] for index in taken.gpus}))


def _power_max_w(series: list[Series], window: Window) -> float:
    covering = [one.covering(window) for one in series]
    times = np.unique(np.concatenate([one.t_ns for one in covering]))
    within = times[(times >= window.t0_ns) & (times < window.t1_ns)]
    return float(np.sum([one.at(within) for one in covering], axis=0).max())


def _throttle(taken: Taken, window: Window) -> tuple[str, dict[str, float] | None]:
    """(the verdict, share of samples in % by what slowed a GPU down, of the GPU that it slowed most).

    The worst that held for SLOWED_SHARE of any GPU's samples; `ok` only where all of them told all the time.
    """
    told: dict[int, list[str]] = {index: [] for index in taken.gpus}
    for one in taken.readings:
        index = int(one.device[3:]) if one.device != HOST else -1
        if index in told and one.throttle is not None and window.t0_ns <= one.t_ns < window.t1_ns:
            told[index].append(one.throttle)
    if not any(told.values()):
        return NO_DATA, None
    words = {word for samples in told.values() for sample in samples for word in sample.split("+")} | {*SLOWDOWNS}
    most = {word: max(_share(word, samples) for samples in told.values()) for word in words - {NOT_SLOWED}}
    shares = {word: round(100 * share, 2) for word, share in sorted(most.items())}
    worst = next((word for word in SLOWDOWNS if most[word] >= SLOWED_SHARE), None)
    if worst:
        return worst, shares
    lost = any("lost" in taken.why.get(f"gpu{index}", {}) for index in told)
    enough = not lost and not taken.failed and min(map(len, told.values())) >= MIN_SAMPLES
    return (OK if enough else NO_DATA), shares


def _share(word: str, samples: list[str]) -> float:
    return sum(word in sample.split("+") for sample in samples) / len(samples) if samples else 0.0
