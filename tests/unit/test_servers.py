"""The files about a server: what is damaged is named in one line, what is whole is read."""

import json

import pytest

from speedmatrix import page, servers, store, sweep
from speedmatrix.cells import Capacity
from speedmatrix.config import Server, parse
from speedmatrix.engines import EngineError, Facts
from tests.unit import samples

CONFIG = parse(
    {"servers": {"vllm": {"engine": "vllm", "url": "http://127.0.0.1:9"}}, "matrix": {"prefill": {"contexts": ["1K"]}}}
)
SERVER = CONFIG.servers["vllm"]
LAUNCH = {
    "server": "vllm", "launch_command": None, "attached": False, "started_at": "2026-12-01T00:00:00Z", "ready_s": 1.0,
    "error": None,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def readers() -> dict:
    """Everything that reads launch.json or health.json."""
    folder = servers.launch_dir(SERVER)
    return {
        "launch.json": [lambda: servers.health(CONFIG, "vllm", folder / "launch.json", folder / "health.json")],
        "health.json": [
            lambda: servers.known_facts(SERVER),
            lambda: sweep.run_cell(CONFIG, CONFIG.cells()[0], folder / "health.json"),
        ],
    }


def without(whole: dict, *keys: str) -> list[str]:
    return [json.dumps({key: value for key, value in whole.items() if key != gone}) for gone in keys]


DAMAGED = {
    "launch.json": ["", "{}", "[]", "null", json.dumps(LAUNCH | {"error": 5}), *without(LAUNCH, *LAUNCH)],
    "health.json": [
        *("", "{}", "[]", '"x"', json.dumps(samples.HEALTH | {"capacity": {}})),
        *(json.dumps(samples.HEALTH | {key: []}) for key in ("facts", "capacity", "hardware", "identity", "error")),
        *without(samples.HEALTH, "error", "facts", "capacity", "hardware", "identity", "stated", "fingerprint"),
    ],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in DAMAGED for text in DAMAGED[name]])
def test_a_damaged_file_is_named_in_one_line(name, text):
    path = servers.launch_dir(SERVER) / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    for read in readers()[name]:
        with pytest.raises(store.StoreError) as caught:
            read()
        said = str(caught.value)
        assert said.startswith(f"{path} ") and said.endswith("delete it and run again") and "\n" not in said
        assert len(said) < 300


def test_what_is_whole_is_read():
    path = servers.launch_dir(SERVER) / "health.json"
    failed = {"server": "vllm", "engine": "vllm", "error": "it ended at start", "facts": None}
    for whole in (samples.HEALTH, failed):
        store.write_json(path, whole)
        assert servers.known_facts(SERVER) == whole


class Answering:
    """An engine that tells what a server would."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def healthy(self) -> bool:
        return True

    def tokenize(self, text: str, with_special: bool) -> list[int]:
        return [1, 2]

    def optional_fields(self) -> dict:
        return {}

    def ask(self, dialect, prompt, extra) -> None:
        return None

    def facts(self) -> Facts:
        return Facts(dict.fromkeys(["version", "model", "quantization", *samples.HEALTH["facts"]]), Capacity())


@pytest.mark.parametrize("stated", [{"gpu": "H100", "gpu_count": 8}, {"gpu": "H100", "gpu_count": "8"}, {"note": True}])
def test_hardware_that_is_stated_in_part_is_shown(stated, monkeypatch):
    monkeypatch.setattr(servers, "engine_for", Answering)
    config = parse({"servers": {"vllm": {"engine": "vllm", "url": "http://127.0.0.1:9", "hardware": stated}}})
    folder = servers.launch_dir(config.servers["vllm"])
    servers.launch(config, "vllm", folder / "launch.json")
    servers.health(config, "vllm", folder / "launch.json", folder / "health.json")
    health = servers.known_facts(config.servers["vllm"])
    text = page.render(page.PageInput([samples.cell()], {"vllm": health}, 1))
    assert "stated</span>" in text and ("on H100 ×8" in text) == ("gpu" in stated)


def test_a_launch_that_failed_is_handed_on():
    folder = servers.launch_dir(SERVER)
    store.write_json(folder / "launch.json", LAUNCH | {"error": "it ended at start"})
    servers.health(CONFIG, "vllm", folder / "launch.json", folder / "health.json")
    assert servers.known_facts(SERVER)["error"] == "it ended at start"


class Refusing(Answering):
    """Up, and of no use."""

    def facts(self) -> Facts:
        raise EngineError("it lists three models")


def test_one_of_several_servers_that_cannot_be_measured_stops_none_and_is_tried_again(monkeypatch):
    monkeypatch.setattr(servers, "engine_for", Refusing)
    one = {"engine": "vllm", "url": "http://127.0.0.1:9"}
    config = parse(
        {"servers": {"a": one, "b": one | {"url": "http://127.0.0.1:8"}}, "matrix": {"prefill": {"contexts": ["1K"]}}}
    )
    folder = servers.launch_dir(config.servers["a"])
    servers.launch(config, "a", folder / "launch.json")
    servers.health(config, "a", folder / "launch.json", folder / "health.json")
    assert servers.known_facts(config.servers["a"])["error"] == "it lists three models"
    assert servers.failed_launches("a", config.servers["a"].digest) == 1
    cell = next(one for one in config.cells() if one.server == "a")
    result = sweep.run_cell(config, cell, folder / "health.json")
    assert (result["status"], result["reason"]) == ("failed", sweep.UNUSABLE)


def test_an_only_server_that_cannot_be_measured_ends_the_sweep(monkeypatch):
    monkeypatch.setattr(servers, "engine_for", Refusing)
    folder = servers.launch_dir(SERVER)
    servers.launch(CONFIG, "vllm", folder / "launch.json")
    with pytest.raises(servers.SweepError, match="it lists three models"):
        servers.health(CONFIG, "vllm", folder / "launch.json", folder / "health.json")
