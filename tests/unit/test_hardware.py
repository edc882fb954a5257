"""The inventory of a host and what is unusual about it; all GPUs are CONSTRUCTED (tests/unit/constructed.py)."""

import json
import platform
from types import SimpleNamespace

import jsonschema
import pynvml
import pytest

from speedmatrix import gpus, hardware, machine, nvidia, store
from speedmatrix.amd import Amd
from speedmatrix.nvidia import NoGpus, Nvidia
from speedmatrix.unusual import unusual
from tests.unit import samples
from tests.unit.constructed import LOST, NOT_FOUND, NOT_SUPPORTED, UNKNOWN, Nvml, process


def host(monkeypatch, nvml: Nvml, pids=frozenset(), environment=None) -> dict:
    monkeypatch.setattr(gpus, "find", lambda: Nvidia(nvml))
    monkeypatch.setattr(hardware, "_machine", lambda: {"cpu": "A CPU", "os": "linux", "governor": None, "boost": None})
    return hardware.this_host(pids, environment)


def test_eight_gpus_are_one_line_on_the_page(monkeypatch):
    told = host(monkeypatch, Nvml(*[{}] * 8))
    shown = [told[key] for key in ("type", "gpu", "gpu_count", "vram", "os")]
    assert shown == ["Discrete GPU", "RTX PRO 6000 Blackwell Server Edition", 8, "768 GB (8 × 96 GB)", "linux"]
    assert (told["driver"], told["cuda"], told["stated"]) == ("580.65.06", "13.0", False)
    first = told["gpus"][0]
    assert (first["compute_capability"], first["power_limit_w"], first["power_default_w"]) == ("12.0", 600, 600)
    assert (first["pcie_generation"], first["pcie_width"], first["mig"], first["ecc"]) == (5, 16, False, True)
    assert first["nvlinks"] is None and first["absent"] == {"nvlinks": "Not Supported"}
    assert unusual(told) == []


def test_a_hardware_names_no_serial_number_no_uuid_and_no_host(monkeypatch):
    text = json.dumps(host(monkeypatch, Nvml(*[{"Serial": "1234567890"}] * 2)) | machine.facts())
    assert "of-this-test" not in text and "1234567890" not in text
    assert len(platform.node()) < 3 or f'"{platform.node()}"' not in text


def test_every_key_is_there_whatever_was_found(monkeypatch):
    found = [host(monkeypatch, Nvml({})), hardware.unknown(), hardware.stated({"gpu": "H100"})]
    monkeypatch.setattr(gpus, "find", lambda: (_ for _ in ()).throw(NoGpus("none here")))
    found.append(hardware.this_host())
    for told in found:
        assert set(told) >= set(hardware.KEYS)
        health = samples.HEALTH | {"hardware": told}
        assert list(store.schema("health").iter_errors(health)) == []
    assert (found[-1]["type"], found[-1]["gpu_count"], found[-1]["gpus_absent"]) == ("CPU only", 0, "none here")
    assert (found[2]["gpu"], found[2]["stated"], found[2]["cpu"]) == ("H100", True, None)


def test_the_schema_refuses_a_hardware_that_the_page_could_not_show():
    broken = samples.HEALTH | {"hardware": hardware.unknown() | {"gpus": [{"name": "H100"}]}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, store.schema("health").schema)


def test_an_old_driver_lacks_calls_and_what_it_tells_is_kept(monkeypatch):
    old = {
        "FieldValues": NOT_FOUND,
        "CurrentClocksEventReasons": NOT_FOUND,
        "CurrentClocksThrottleReasons": pynvml.nvmlClocksThrottleReasonSwPowerCap,
        "GpcClkVfOffset": NOT_FOUND,
        "TotalEnergyConsumption": NOT_SUPPORTED,
        "MigMode": NOT_SUPPORTED,
    }
    nvml = Nvml(old)
    told = host(monkeypatch, nvml)
    assert told["gpus"][0]["name"].startswith("NVIDIA RTX") and told["gpus"][0]["sm_clock_offset_mhz"] is None
    assert told["gpus"][0]["absent"]["sm_clock_offset_mhz"] == "Function Not Found"
    assert told["gpus"][0]["mig"] is None and told["gpus"][0]["mig_slices"] is None
    reading = Nvidia(nvml).read(0)
    assert (reading.power_w, reading.energy_j, reading.throttle) == (90, None, "power-capped")


def test_what_is_not_supported_is_asked_once():
    nvml = Nvml({"TotalEnergyConsumption": NOT_SUPPORTED, "UtilizationRates": UNKNOWN})
    found = Nvidia(nvml)
    for _ in range(3):
        assert found.read(0).util_pct is None
    asked = [name for name, _ in nvml.asked]
    assert (asked.count("DeviceGetTotalEnergyConsumption"), asked.count("DeviceGetUtilizationRates")) == (1, 3)
    assert found.unsupported(0) == {"energy_j": "Not Supported"}


def test_a_call_that_raises_anything_costs_only_its_own_answer(monkeypatch):
    told = host(monkeypatch, Nvml({"Name": ValueError("not UTF-8"), "EccMode": UNKNOWN}, {}))
    assert told["gpus"][0]["name"] is None and told["gpus"][0]["absent"]["name"] == "not UTF-8"
    assert (told["gpu"], told["gpu_count"]) == ("RTX PRO 6000 Blackwell Server Edition", 2)


def test_a_mig_slice(monkeypatch):
    places = {0: 1, 4: 2}  # of seven, two are taken; a slice has a handle of its own

    def slice_at(place: int) -> int:
        if place not in places:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return places[place]

    whole = {"MigMode": (1, 1), "MaxMigDeviceCount": 7, "MigDeviceHandleByIndex": slice_at}
    nvml = Nvml(whole, {"Name": "NVIDIA H100 MIG 3g.40gb"}, {"Name": "NVIDIA H100 MIG 1g.10gb"})
    nvml.nvmlDeviceGetCount = lambda: 1
    told = host(monkeypatch, nvml)
    assert [part["name"][-11:] for part in told["gpus"][0]["mig_slices"]] == ["MIG 3g.40gb", "MIG 1g.10gb"]
    (finding,) = unusual(told)
    assert finding.what == "GPU 0: cut into MIG slices, 2 at present."


def test_a_gpu_that_is_lost_before_anything_begins(monkeypatch):
    told = host(monkeypatch, Nvml({}, dict.fromkeys(["Name", "MemoryInfo", "TotalEnergyConsumption"], LOST)))
    assert (told["gpu_count"], told["vram"]) == (2, "96 GB")
    (finding,) = unusual(told)
    assert finding.what == "GPU 1: does not answer (GPU is lost)."


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"EnforcedPowerLimit": 400_000}, "GPUs 0, 1: power limit 400 W, below the default of 600 W."),
        ({"EnforcedPowerLimit": 650_000}, "GPUs 0, 1: power limit 650 W, above the default of 600 W."),
        ({"Clock": lambda kind, which: {1: 1500, 2: 2430}[which]}, "SM clock set to 1500 MHz instead of 2430 MHz."),
        ({"GpcClkVfOffset": 150, "MemClkVfOffset": -500}, "SM clock +150 MHz and memory clock -500 MHz off its curve."),
        ({"EccMode": (0, 0)}, "GPUs 0, 1: ECC is off."),
        ({"PersistenceMode": 0}, "GPUs 0, 1: persistence mode is off."),
        ({"CurrPcieLinkWidth": 8}, "GPUs 0, 1: 8 PCIe lanes of 16."),
        ({"CurrentClocksEventReasons": 0x48}, "GPUs 0, 1: thermal at rest, at 34 °C."),
        ({"CurrentClocksEventReasons": 0x88}, "GPUs 0, 1: hardware slowdown at rest, at 34 °C."),
    ],
)
def test_each_setting_that_makes_a_result_unlike_others_is_a_finding(monkeypatch, changed, what):
    (finding,) = unusual(host(monkeypatch, Nvml(changed, changed)))
    assert finding.what.endswith(what)
    assert finding.meaning.endswith(".") and finding.advice.endswith(".")


def test_gpus_that_are_set_alike_share_a_finding_and_others_have_their_own(monkeypatch):
    low, lower = {"EnforcedPowerLimit": 500_000}, {"EnforcedPowerLimit": 300_000}
    told = [finding.what for finding in unusual(host(monkeypatch, Nvml(low, {}, low, lower)))]
    assert told == [
        "GPUs 0, 2: power limit 500 W, below the default of 600 W.",
        "GPU 3: power limit 300 W, below the default of 600 W.",
    ]


def test_others_on_the_servers_gpus(monkeypatch):
    shared = {"ComputeRunningProcesses": [process(10, 80), process(99, 1.5)]}
    own = {"ComputeRunningProcesses": [process(11, 80)]}
    told = host(monkeypatch, Nvml(shared, own, {"ComputeRunningProcesses": [process(98)]}), {10, 11})
    assert told["gpus_used"] == {"indexes": [0, 1], "by": "the server's processes on them"}
    (finding,) = unusual(told)
    assert finding.what == "GPU 0: 1 other process at work in 1.5 GB of its memory."


def test_in_a_container_pids_tell_nothing_of_whose_memory_it_is(monkeypatch):
    told = host(monkeypatch, Nvml({"ComputeRunningProcesses": [process(4242)]}), {7})
    assert told["at_rest"][0]["others"] is None and unusual(told) == []
    assert told["gpus_used"] == {"indexes": [0], "by": gpus.ALL}


@pytest.mark.parametrize(
    ("visible", "indexes"),
    [
        ("1,3", (1, 3)),
        ("GPU-of-this-test-2", (2,)),
        ("0,9,1", (0,)),  # CUDA stops at the first that is none
        ("-1", ()),
        ("", ()),
    ],
)
def test_the_servers_environment_names_its_gpus_where_pids_do_not(visible, indexes):
    used = gpus.used(Nvidia(Nvml(*[{}] * 4)), set(), {"CUDA_VISIBLE_DEVICES": visible})
    assert used == gpus.Used(indexes, "CUDA_VISIBLE_DEVICES of the server's process")


def test_an_index_is_not_trusted_where_gpus_differ():
    used = gpus.used(Nvidia(Nvml({}, {"Name": "NVIDIA T4"})), set(), {"CUDA_VISIBLE_DEVICES": "0"})
    assert used == gpus.Used((0, 1), gpus.ALL)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x0, "none"),
        (0x1, "none"),  # idle
        (0x4, "power-capped"),
        (0x20, "thermal"),
        (0x48, "thermal"),  # slowed down by the hardware, because of heat
        (0x88, "hardware slowdown"),
        (0x8, "hardware slowdown"),
        (0x26, "power-capped+thermal+clocks set"),
    ],
)
def test_nvmls_bits_in_words(bits, words):
    assert nvidia.slowed(bits) == words


def test_a_host_without_a_driver_says_why():
    for nvml, said in (
        (Nvml(Init=pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)), "NVML: Driver Not Loaded"),
        (Nvml(), "NVML lists no GPU"),
    ):
        with pytest.raises(NoGpus, match=said):
            Nvidia(nvml)
    with pytest.raises(NoGpus, match="amdsmi: No module named 'amdsmi'"):
        Amd()


def constructed_amd() -> SimpleNamespace:
    """amdsmi with one CONSTRUCTED GPU, by its documentation; a power of None says N/A."""
    return SimpleNamespace(
        AmdSmiTemperatureType=SimpleNamespace(EDGE=0, HOTSPOT=1),
        AmdSmiTemperatureMetric=SimpleNamespace(CURRENT=0),
        AmdSmiClkType=SimpleNamespace(GFX=0, MEM=4),
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: ["gpu"],
        amdsmi_get_gpu_driver_info=lambda gpu: {"driver_version": "6.14.14"},
        amdsmi_get_gpu_asic_info=lambda gpu: {"market_name": "AMD Instinct MI300X", "asic_serial": "0x1234"},
        amdsmi_get_gpu_vram_usage=lambda gpu: {"vram_total": 196592, "vram_used": 1000},
        amdsmi_get_power_cap_info=lambda gpu: {"power_cap": 600_000_000, "default_power_cap": 750_000_000},
        amdsmi_get_clock_info=lambda gpu, kind: {"clk": 1300 + kind, "max_clk": 2100},
        amdsmi_get_energy_count=lambda gpu: {"energy_accumulator": 2_000_000, "counter_resolution": 15.3},
        amdsmi_get_power_info=lambda gpu: {"socket_power": "N/A", "current_socket_power": 140},
        amdsmi_get_temp_metric=lambda gpu, kind, metric: "N/A" if kind == 0 else 41,
    )


def test_an_amd_gpu(monkeypatch):
    found = Amd(constructed_amd())
    reading = found.read(0)
    # 2,000,000 ticks of 15.3 µJ are 30.6 J; the edge has no sensor, so that the hottest spot counts.
    assert (round(reading.energy_j, 6), reading.power_w, reading.temp_c, reading.sm_clock_mhz) == (30.6, 140, 41, 1300)
    assert reading.memory_used_bytes == 1000 * 2**20 and reading.util_pct is None and reading.throttle is None
    monkeypatch.setattr(gpus, "find", lambda: found)
    told = hardware.this_host()
    assert (told["gpu"], told["driver"], told["vram"]) == ("AMD Instinct MI300X", "6.14.14", "192 GB")
    assert "0x1234" not in json.dumps(told)
    (finding,) = unusual(told)
    assert finding.what == "GPU 0: power limit 600 W, below the default of 750 W."


def test_what_governs_the_cpu(tmp_path):
    for name in ("cpu0", "cpu1"):
        (tmp_path / name / "cpufreq").mkdir(parents=True)
        for file, text in {
            "scaling_governor": "powersave",
            "scaling_driver": "intel_pstate",
            "cpuinfo_max_freq": 3800000,
        }.items():
            (tmp_path / name / "cpufreq" / file).write_text(f"{text}\n")
    (tmp_path / "intel_pstate").mkdir()
    (tmp_path / "intel_pstate/no_turbo").write_text("1\n")
    told = machine.cpu_frequency(tmp_path)
    assert told == {"governor": "powersave", "governor_driver": "intel_pstate", "cpu_max_mhz": 3800, "boost": False}
    findings = unusual(hardware.unknown() | {"gpus": []} | told)
    assert [finding.what for finding in findings] == [
        "The CPU's governor is powersave (intel_pstate).",
        "The CPU's boost is off, at a highest clock of 3,800 MHz.",
    ]
    assert set(machine.cpu_frequency(tmp_path / "none").values()) == {None}


def test_container_and_virtual_machine(tmp_path):
    proc = tmp_path / "proc"
    (proc / "1").mkdir(parents=True)
    assert machine.container(tmp_path, proc, {}) is None
    assert machine.container(tmp_path, proc, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == "Kubernetes"
    (tmp_path / ".dockerenv").touch()
    assert machine.container(tmp_path, proc, {}) == "Docker"
    (proc / "1/cgroup").write_text("0::/kubepods/burstable/pod1\n")
    assert machine.container(tmp_path, proc, {}) == "Kubernetes"
    (proc / "cpuinfo").write_text("flags\t\t: fpu vme hypervisor\n")
    assert machine.vm(proc, tmp_path / "sys") == "unknown kind"
    (proc / "cpuinfo").write_text("flags\t\t: fpu vme\n")
    assert machine.vm(proc, tmp_path / "sys") is None


def test_an_older_hardware_has_no_findings_and_keeps_its_fingerprint():
    older = samples.HEALTH["hardware"]
    assert unusual(older) == [] and hardware.lasting(older) == older
    assert unusual(hardware.stated({"gpus": "eight of them", "governor": "powersave"})) == []


def test_what_is_otherwise_at_each_look_is_no_part_of_what_was_measured(monkeypatch):
    idle = host(monkeypatch, Nvml({}))
    busy = host(monkeypatch, Nvml({"Temperature": lambda kind: 80, "ComputeRunningProcesses": [process(5)]}), {5})
    assert idle != busy and hardware.lasting(idle) == hardware.lasting(busy)


def test_whose_devices_these_are():
    assert hardware.elsewhere(None, "http://127.0.0.1:8000") is None
    assert "not on this host" in hardware.elsewhere(None, "http://192.0.2.1:8000")
    assert "states the server's hardware" in hardware.elsewhere({"gpu": "H100"}, "http://127.0.0.1:8000")
