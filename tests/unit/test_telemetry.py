"""Power, energy and the rest over a cell's window, by arithmetic; all GPUs are CONSTRUCTED (constructed.py)."""

import csv
import io
import json
import sys
import time
from dataclasses import replace

import psutil
import pytest

from speedmatrix import gpus, integration, listeners, sampling, store, telemetry
from speedmatrix.arrivals import Run, Stream
from speedmatrix.config import parse
from speedmatrix.integration import Taken, summary
from speedmatrix.nvidia import Nvidia
from speedmatrix.readings import HOST, SECOND, Reading
from speedmatrix.sensors import CpuTemperature, Rapl
from speedmatrix.series import Window
from tests.unit import samples
from tests.unit.constructed import LOST, NOT_SUPPORTED, UNKNOWN, Nvml, process

T0 = 1000 * SECOND
WINDOW = Window(T0, T0 + 10 * SECOND, tokens=1200.0)


def at(t_s: float, device: str = "gpu0", **values) -> Reading:
    """A reading `t_s` seconds after the window's start."""
    return Reading(T0 + round(t_s * SECOND), device, **values)


def taken(*readings: Reading, **more) -> Taken:
    used = tuple(sorted({int(one.device[3:]) for one in readings if one.device != HOST}))
    return Taken(sorted(readings, key=lambda one: one.t_ns), "nvml", used, "the server's processes on them", **more)


def every_second(first: int, last: int, device: str = "gpu0", **values) -> list[Reading]:
    """A reading each second; a value may be a function of the second."""
    told = {name: value if callable(value) else lambda t, value=value: value for name, value in values.items()}
    return [at(t, device, **{name: of(t) for name, of in told.items()}) for t in range(first, last + 1)]


def test_energy_is_the_counters_rise_between_the_windows_exact_edges():
    # 200 W until 0.5 s before the window, 400 W from then on, read at half seconds: the edges lie between two readings.
    readings = [at(t + 0.5, energy_j=5000 + 400 * t) for t in range(-1, 11)]
    told = summary(taken(*readings), WINDOW)
    assert (told["energy_j"], told["power_avg_w"], told["energy_by"]) == (4000, 400, "counter")
    # 1,200 tokens for 4,000 J.
    assert (told["tok_per_j"], told["j_per_tok"]) == (pytest.approx(0.3), pytest.approx(10 / 3))


def test_without_a_counter_energy_is_the_integral_of_power():
    # From 100 W at -1 s in a straight line to 320 W at 10 s: 120 W at the start, 320 W at the end, 220 W on average.
    readings = [at(t, power_w=120 + 20 * t) for t in (-1, 1, 2.5, 4, 5.75, 7, 9, 10)]
    told = summary(taken(*readings), WINDOW)
    assert (told["energy_j"], told["energy_by"]) == (pytest.approx(2200), "power")
    assert told["power_max_w"] == 120 + 20 * 9  # the highest reading inside [t0, t1)
    # A step: 100 W up to 4 s, 300 W from 5 s: 4 × 100 + 200 + 5 × 300.
    step = every_second(-1, 11, power_w=lambda t: 100 if t <= 4 else 300)
    assert summary(taken(*step), WINDOW)["energy_j"] == pytest.approx(2100)


def test_eight_gpus_are_summed():
    own = {"energy_j": lambda t: 300 * t, "power_w": 300, "temp_c": 60, "sm_clock_mhz": 2000, "util_pct": 90}
    own |= {"memory_used_bytes": 90 * 10**9, "pcie_rx_mb_s": 2.5, "throttle": "none"}
    readings = [one for index in range(7) for one in every_second(-1, 11, f"gpu{index}", **own)]
    readings += every_second(-1, 11, "gpu7", **own | {"temp_c": 71, "sm_clock_mhz": 1200, "util_pct": 10})
    told = summary(taken(*readings), WINDOW)
    assert (told["gpus"], told["energy_j"], told["power_avg_w"], told["power_max_w"]) == (
        list(range(8)),
        24000,
        2400,
        2400,
    )
    assert (told["gpu_temp_max_c"], told["sm_clock_avg_mhz"], told["gpu_util_avg_pct"]) == (71, 1900, 80)
    assert (told["gpu_memory_max_bytes"], told["pcie_rx_avg_mb_s"], told["throttle"]) == (720 * 10**9, 20, "ok")
    assert told["mem_clock_avg_mhz"] is None and told["absent"]["mem_clock_avg_mhz"] == "gpu0: not told"


def test_the_peak_is_of_the_sum_and_not_the_sum_of_peaks():
    # Two GPUs that take turns at 400 W and 100 W, read at the same moments.
    readings = every_second(-1, 11, "gpu0", power_w=lambda t: 400 if t % 2 else 100)
    readings += every_second(-1, 11, "gpu1", power_w=lambda t: 100 if t % 2 else 400)
    assert summary(taken(*readings), WINDOW)["power_max_w"] == 500


def test_what_lies_outside_of_the_window_does_not_count():
    loud = [*every_second(-9, -2, temp_c=99, power_w=900), *every_second(12, 20, temp_c=99, power_w=900)]
    quiet = every_second(-1, 11, temp_c=50, power_w=200)
    told = summary(taken(*loud, *quiet), WINDOW)
    assert (told["gpu_temp_max_c"], told["power_max_w"], told["energy_j"]) == (50, 200, pytest.approx(2000))


@pytest.mark.parametrize(
    ("readings", "why"),
    [
        (every_second(2, 11, power_w=100), "sampling began 2.0 s after the window"),
        (every_second(-1, 4, power_w=100), "gpu0 power_w was not read any more from 4.0 s of the window on"),
        (
            [*every_second(-1, 3, power_w=100), *every_second(8, 11, power_w=100)],
            "gpu0 power_w was not read for 5.0 s of the window",
        ),
        ([at(-1, power_w=100), at(5, power_w=100), at(11, power_w=100)], "the window of 10.00 s holds only 1 samples"),
        (every_second(-1, 11, temp_c=50), "gpu0: not told"),
    ],
)
def test_samples_that_do_not_cover_the_window_give_no_energy_and_a_reason(readings, why):
    told = summary(taken(*readings), WINDOW)
    for name in ("energy_j", "power_avg_w", "tok_per_j", "j_per_tok"):
        assert (told[name], told["absent"][name]) == (None, why)


def test_a_gpu_lost_in_mid_run():
    own = {"energy_j": lambda t: 300 * t, "temp_c": 60, "throttle": "none"}
    readings = [*every_second(-1, 11, "gpu0", **own), *every_second(-1, 4, "gpu1", **own | {"temp_c": 75})]
    told = summary(taken(*readings, why={"gpu1": {"lost": "GPU is lost"}}), WINDOW)
    assert told["energy_j"] is None and told["absent"]["energy_j"] == (
        "gpu1 energy_j was not read any more from 4.0 s of the window on (gpu1: GPU is lost)"
    )
    assert (told["throttle"], told["gpu_temp_max_c"]) == ("no data", 75)


def test_a_slices_energy_is_not_known_and_its_gpus_temperature_is():
    readings = every_second(-1, 11, energy_j=lambda t: 300 * t, temp_c=60)
    told = summary(taken(*readings, sliced=(0,)), WINDOW)
    assert told["absent"]["energy_j"] == "gpu0 is cut into MIG slices: its power is not the server's alone"
    assert (told["energy_j"], told["gpu_temp_max_c"]) == (None, 60)


@pytest.mark.parametrize(
    ("slowed", "verdict"),
    [
        ({}, "ok"),
        ({3: "power-capped"}, "power-capped"),  # one of ten samples
        ({3: "thermal+power-capped", 5: "thermal"}, "thermal"),
        (dict.fromkeys(range(10), "power-capped") | {4: "hardware slowdown"}, "hardware slowdown"),
        (dict.fromkeys(range(10), "clocks set"), "ok"),
        ({-1: "thermal", 11: "thermal"}, "ok"),  # outside of the window
    ],
)
def test_the_verdict_is_the_worst_that_held_for_a_twentieth_of_the_window(slowed, verdict):
    told = summary(taken(*every_second(-1, 11, throttle=lambda t: slowed.get(t, "none"))), WINDOW)
    assert told["throttle"] == verdict
    assert told["throttle_share_pct"]["thermal"] == 10 * sum("thermal" in slowed.get(t, "") for t in range(10))


def test_a_rare_slowdown_is_no_verdict_but_is_told():
    readings = [at(t / 10, throttle="power-capped" if t == 50 else "none") for t in range(-1, 102)]
    told = summary(taken(*readings), WINDOW)
    assert (told["throttle"], told["throttle_share_pct"]["power-capped"]) == ("ok", 1)


def test_a_host_without_gpus_counts_its_cpu():
    readings = every_second(-1, 11, HOST, energy_j=lambda t: 50 * t, util_pct=75, temp_c=60, memory_used_bytes=10**9)
    told = summary(Taken(readings, why={"gpus": "NVML: Driver Not Loaded"}), WINDOW)
    assert (told["source"], told["energy_j"], told["cpu_energy_j"], told["power_max_w"]) == ("rapl", 500, 500, 50)
    assert (told["cpu_load_avg_pct"], told["cpu_temp_max_c"], told["server_memory_max_bytes"]) == (75, 60, 10**9)
    assert (told["throttle"], told["gpu_temp_max_c"]) == ("no data", None)
    assert told["absent"]["gpu_temp_max_c"] == "NVML: Driver Not Loaded"


def test_no_figure_is_ever_0_for_want_of_data():
    nothing = summary(Taken(failed="the sampler hung"), WINDOW)
    assert {nothing[name] for name in integration.FIGURES} == {None}
    assert (nothing["reason"], nothing["throttle"], nothing["source"]) == ("the sampler hung", "no data", None)
    still = summary(taken(*every_second(-1, 11, energy_j=7)), WINDOW)
    assert (still["energy_j"], still["absent"]["power_avg_w"]) == (None, "the energy counter did not rise")
    without = summary(taken(*every_second(-1, 11, energy_j=lambda t: t)), replace(WINDOW, tokens=None))
    assert (without["tok_per_j"], without["absent"]["tok_per_j"]) == (None, "how many tokens there were is not known")


def test_every_telemetry_fits_the_cells_schema():
    for told in (summary(Taken(failed="x"), WINDOW), summary(taken(*every_second(-1, 11, power_w=5)), WINDOW)):
        assert list(store.schema("cell").iter_errors(samples.cell(telemetry=told))) == []
    for older in (samples.cell(), samples.cell(telemetry=None)):
        assert list(store.schema("cell").iter_errors(older)) == []


def test_the_window_of_each_phase():
    assert integration.window_of(Run([], 5, 9), 33.0) == Window(5, 9, 33.0)
    streams = [
        Stream(0, index, started_ns=start, t_ns=[start + 40], prompt_tokens=512)
        for index, start in ((1, 100), (2, 150))
    ]
    assert integration.window_of(Run(streams), None) == Window(100, 190, 1024.0)
    streams[0].prompt_tokens = None
    assert integration.window_of(Run(streams), None) == Window(100, 190, None)
    assert integration.window_of(Run([]), None) is None


# --- the CPU's counters


def rapl(tmp_path, **zones: tuple[str, int]) -> list:
    for folder, (name, energy_uj) in zones.items():
        zone = tmp_path / folder.replace("_", ":").replace("rapl", "intel-rapl")
        zone.mkdir()
        for file, text in {"name": name, "energy_uj": energy_uj, "max_energy_range_uj": 999_999}.items():
            (zone / file).write_text(f"{text}\n")
    return sorted(tmp_path.iterdir())


def test_rapl_adds_packages_and_memory_and_follows_a_counter_that_starts_anew(tmp_path):
    zones = rapl(
        tmp_path, rapl_0=("package-0", 900_000), rapl_0_0=("core", 5), rapl_0_1=("dram", 0), rapl_1=("psys", 7)
    )
    counter = Rapl(tmp_path)
    assert counter.energy_j() == 0
    (zones[0] / "energy_uj").write_text("100000")  # 100,000 to the end of 1,000,000, and 100,000 from there
    (zones[2] / "energy_uj").write_text("50000")
    (zones[1] / "energy_uj").write_text("999999")  # a part of the package
    assert counter.energy_j() == pytest.approx(0.25)
    (zones[0] / "energy_uj").write_text("300000")
    assert counter.energy_j() == pytest.approx(0.45)


def test_rapl_that_is_absent_or_forbidden_says_so(tmp_path):
    assert (Rapl(tmp_path).energy_j(), Rapl(tmp_path).why) == (None, "this host has no RAPL")
    (zone,) = rapl(tmp_path, rapl_0=("package-0", 5))
    (zone / "energy_uj").unlink()  # as good as forbidden, also where tests run as root
    assert (Rapl(tmp_path).energy_j(), Rapl(tmp_path).why) == (None, "RAPL can't be read: No such file or directory")


def test_the_cpus_temperature_is_its_own_sensors(tmp_path):
    for folder, name, value in (
        ("hwmon0", "nvme", 99000),
        ("hwmon1", "coretemp", 45000),
        ("hwmon2", "coretemp", 51500),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "name").write_text(f"{name}\n")
        (tmp_path / folder / "temp1_input").write_text(f"{value}\n")
    assert CpuTemperature(tmp_path).celsius() == 51.5
    assert CpuTemperature(tmp_path / "none").celsius() is None


# --- the sampler


def sampler(monkeypatch, nvml: Nvml, pids=frozenset({10})) -> sampling.Sampler:
    monkeypatch.setattr(listeners, "server_pids", lambda tag, port: set(pids))
    return sampling.Sampler(None, 1, Nvidia(nvml))


def rounds(made: sampling.Sampler, number: int) -> Taken:
    lines = []
    for _ in range(number):
        made.look()
        lines += [json.dumps(item) for item in made.round()]
    return telemetry.parse("\n".join(lines))


def test_the_sampler_counts_the_gpus_of_the_servers_processes(monkeypatch):
    busy = {"ComputeRunningProcesses": [process(10)]}
    seen = rounds(sampler(monkeypatch, Nvml({}, busy, {}, busy)), 3)
    assert (seen.source, seen.gpus, seen.by) == ("nvml", (1, 3), "the server's processes on them")
    assert [one.device for one in seen.readings] == ["host", "gpu0", "gpu1", "gpu2", "gpu3"] * 3
    first = seen.readings[1]
    assert (first.power_w, first.energy_j, first.temp_c, first.sm_clock_mhz, first.throttle) == (
        85.5,
        5000,
        34,
        180,
        "none",
    )


def test_pcie_is_read_of_one_gpu_after_another(monkeypatch):
    seen = rounds(sampler(monkeypatch, Nvml({}, {})), 9)
    read = [(place // 3, one.device) for place, one in enumerate(seen.readings) if one.pcie_rx_mb_s is not None]
    assert read == [(0, "gpu0"), (4, "gpu1"), (8, "gpu0")]
    assert (seen.readings[1].pcie_rx_mb_s, seen.readings[1].pcie_tx_mb_s) == (2.5, 0.8)


def test_the_gpus_of_a_server_that_ends_stay_its_own(monkeypatch):
    nvml = Nvml({}, {"ComputeRunningProcesses": [process(10)]})
    made = sampler(monkeypatch, nvml)
    monkeypatch.setattr(sampling, "_LOOK_EVERY_S", 0)
    monkeypatch.setattr(sampling, "_LOOK_BUSY", 0)
    rounds(made, 1)
    nvml.gpus[1]["ComputeRunningProcesses"] = []
    made.look()
    assert [item for item in made.round() if isinstance(item, dict)] == []  # nothing new became known
    nvml.gpus[0]["ComputeRunningProcesses"] = [process(10)]
    assert rounds(made, 1).gpus == (0, 1)


def test_a_gpu_that_is_lost_is_not_asked_again_and_the_others_are(monkeypatch):
    nvml = Nvml({}, {})
    made = sampler(monkeypatch, nvml, pids=set())
    rounds(made, 1)
    nvml.gpus[1] |= dict.fromkeys(["TotalEnergyConsumption", "PowerUsage", "Temperature"], LOST)
    nvml.asked.clear()
    seen = rounds(made, 3)
    assert seen.why["gpu1"] == {"lost": "GPU is lost"}
    assert [one.device for one in seen.readings] == ["host", "gpu0"] * 3
    assert [name for name, index in nvml.asked if index == 1].count("DeviceGetTotalEnergyConsumption") == 1


def test_a_call_that_raises_leaves_its_column_empty(monkeypatch):
    broken = {
        "Temperature": UNKNOWN,
        "UtilizationRates": RuntimeError("surprise"),
        "TotalEnergyConsumption": NOT_SUPPORTED,
    }
    seen = rounds(sampler(monkeypatch, Nvml(broken)), 2)
    assert [(one.temp_c, one.util_pct, one.power_w) for one in seen.readings[1::2]] == [(None, None, 85.5)] * 2
    assert seen.why["gpu0"] == {"energy_j": "Not Supported"}


def test_a_slice_is_known_to_be_one(monkeypatch):
    assert rounds(sampler(monkeypatch, Nvml({"MigMode": (1, 1)}, {})), 1).sliced == (0,)


def test_an_environment_without_gpus_means_none(monkeypatch):
    monkeypatch.setattr(listeners, "environment_of", lambda pids: {"CUDA_VISIBLE_DEVICES": ""})
    seen = rounds(sampler(monkeypatch, Nvml({}, {})), 1)
    assert (seen.gpus, seen.by) == ((), "CUDA_VISIBLE_DEVICES of the server's process")


# --- its process


def until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def has_ended() -> bool:
    return all(child.status() == psutil.STATUS_ZOMBIE for child in psutil.Process().children())


LINE, READY = "print('[1,\"host\"]', flush=True)", "import os, sys, time; open(sys.argv[1], 'w').close()"
ASKED_TO_END = "sys.stdin.read()"


@pytest.mark.parametrize(
    ("program", "failed", "readings"),
    [
        (f"{LINE}; {READY}; sys.exit('no driver')", "the sampler crashed: no driver", 1),
        (f"{LINE}; {READY}; os.kill(os.getpid(), 9)", "the sampler crashed: code -9", 1),
        (f"{LINE}; {READY}; time.sleep(60)", "the sampler hung", 1),
        (f"{READY}; time.sleep(60)", "the sampler hung", 0),
        (f"{READY}; {ASKED_TO_END}", "the sampler read nothing", 0),
        (f"{LINE}; print('[2,\"ho', flush=True); {READY}; {ASKED_TO_END}", None, 1),
        (f"print({[*range(14)]}); {READY}; {ASKED_TO_END}", "the sampler read nothing", 0),
    ],
)
def test_a_sampler_that_fails_is_no_data_with_a_reason_and_no_delay(program, failed, readings, tmp_path):
    ready = tmp_path / "ready"
    with telemetry.running([sys.executable, "-c", program, str(ready)]) as recording:
        until(ready.exists)
        if "crashed" in (failed or ""):
            until(has_ended)
        began = time.monotonic()
    assert time.monotonic() - began < 10  # it would sleep for a minute
    assert (recording.taken.failed, len(recording.taken.readings)) == (failed, readings)
    told = recording.telemetry(WINDOW)
    assert told["reason"] == failed and told["energy_j"] is None


def test_a_sampler_that_can_not_be_started_is_no_data():
    with telemetry.running(["/no/such/program"]) as recording:
        pass
    assert recording.taken.failed == "the sampler could not be started: No such file or directory"


def test_what_makes_no_sense_is_no_data():
    nonsense = Taken([Reading("now", "gpu0", power_w="much")], "nvml", (0,))  # type: ignore[arg-type]
    told = telemetry.Recording(nonsense).telemetry(WINDOW)
    assert told["reason"] == "what the sampler wrote could not be worked out"
    assert telemetry.Recording(nonsense).csv(WINDOW) is None


def test_the_error_of_what_is_measured_comes_through():
    with pytest.raises(ValueError, match="of the cell"), telemetry.running([sys.executable, "-c", LINE]) as recording:
        raise ValueError("of the cell")
    assert recording.taken is not None


def server(url: str, **more):
    return parse({"servers": {"s": {"engine": "vllm", "url": url, **more}}}).servers["s"]


@pytest.mark.parametrize(
    ("url", "more", "why"),
    [
        ("http://192.0.2.1:8000", {}, "the server is not on this host"),
        ("http://127.0.0.1:9", {"hardware": {"gpu": "H100"}}, "the config states the server's hardware"),
    ],
)
def test_a_server_elsewhere_is_not_sampled(url, more, why):
    with telemetry.recording(server(url, **more), None) as recording:
        pass
    assert recording.taken.failed.startswith(why) and recording.csv(WINDOW) is None


def test_the_real_sampler_on_this_host():
    began_ns = time.perf_counter_ns()
    with telemetry.recording(server("http://127.0.0.1:9"), None) as recording:
        time.sleep(2)
    seen = [one for one in recording.taken.readings if one.device == HOST]
    assert len(seen) >= 4
    # One clock for both processes, and a last sample after the sign to end.
    assert began_ns < seen[0].t_ns and seen[-1].t_ns > began_ns + 1.5 * SECOND
    told = recording.telemetry(Window(seen[0].t_ns, seen[-1].t_ns, None))
    assert 0 <= told["cpu_load_avg_pct"] < 100.1 and told["samples"] == len(seen) - 1
    assert told["absent"]["server_memory_max_bytes"] == "the server's processes can't be seen"


def test_the_series_beside_a_cell_is_cut_to_the_window_and_its_surroundings():
    readings = [*every_second(-60, 60, power_w=100.125), *every_second(-60, 60, "gpu1", power_w=1)]
    text = telemetry.Recording(replace(taken(*readings), gpus=(0,))).csv(WINDOW)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [float(row["t_s"]) for row in rows] == list(range(-5, 16))
    assert rows[0]["t_ns"] == str(T0 - 5 * SECOND)
    assert {row["device"] for row in rows} == {"gpu0"}
    assert (rows[0]["power_w"], rows[0]["temp_c"]) == ("100.125", "")


def test_gpus_find_nothing_where_there_is_nothing(monkeypatch):
    monkeypatch.setattr(gpus, "Nvidia", lambda: (_ for _ in ()).throw(gpus.NoGpus("no NVIDIA")))
    monkeypatch.setattr(gpus, "Amd", lambda: (_ for _ in ()).throw(gpus.NoGpus("no AMD")))
    with pytest.raises(gpus.NoGpus, match="no NVIDIA; no AMD"):
        gpus.find()
