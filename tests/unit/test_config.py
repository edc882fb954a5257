"""The config: defaults, one-line errors, cells in order, and params that change with what matters only."""

import copy
import dataclasses
import json

import pytest
import yaml

from speedmatrix import config, cost
from speedmatrix.config import ConfigError

BASE = {
    "servers": {"a": {"engine": "llama.cpp", "url": "http://127.0.0.1:1/v1/", "launch": {"command": ["run", 7]}}},
    "matrix": {"prefill": {"contexts": ["1K"]}, "decode": {"contexts": ["2K", 512], "concurrency": [2, 1]}},
}


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def changed(path: str, value) -> dict:
    raw = copy.deepcopy(BASE)
    *parents, last = path.split("/")
    place = raw
    for key in parents:
        place = place.setdefault(key, {})
    place[last] = value
    return raw


def test_defaults_come_from_the_schema():
    read = config.parse(BASE)
    assert (read.measure.duration_s, read.measure.max_output_tokens, read.measure.prefill_repeats) == (30, 4096, 3)
    launch = read.servers["a"].launch
    assert (launch.command, launch.stop_grace_s, launch.max_launches) == (("run", "7"), 10, 2)
    assert read.servers["a"].url == "http://127.0.0.1:1"


def test_cells_in_the_order_they_are_measured():
    names = [cell.name for cell in config.parse(BASE).cells()]
    assert names == ["prefill-1K", "decode-512-x1", "decode-512-x2", "decode-2K-x1", "decode-2K-x2"]


def test_repeats_are_cells_of_their_own():
    names = [cell.name for cell in config.parse(changed("measure/repeats", 2)).cells()]
    assert names[:3] == ["prefill-1K", "decode-512-x1", "decode-512-x1.r2"]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("nonsense", 1, "unknown key 'nonsense'; allowed: author, matrix, measure, report, servers, title"),
        ("measure/durations_s", 1, "measure: unknown key 'durations_s'"),
        ("matrix/decode/contexts", ["8KB"], "matrix.decode.contexts.0: '8KB' is no size; allowed"),
        ("matrix/decode/contexts", ["8K", 8192], "matrix.decode.contexts: the same context stands twice"),
        ("matrix/decode/concurrency", [0], "matrix.decode.concurrency.0: 0 is less than the minimum of 1"),
        ("matrix/decode/concurrency", [-4], "matrix.decode.concurrency.0: -4 is less"),
        ("matrix/decode/concurrency", [2, 2], "matrix.decode.concurrency: the same value stands twice"),
        ("measure/duration_s", -3, "measure.duration_s: -3 is less"),
        ("servers", {}, "servers: "),
        ("servers/../up", {"engine": "llama.cpp", "url": "http://x"}, "servers: "),
        (
            "servers/a/engine",
            "tensorrt",
            "servers.a.engine: 'tensorrt' is not allowed; allowed: llama.cpp, openai, sglang, vllm",
        ),
        ("servers/a/url", "http://user:pw@host", "servers.a.url: "),
        ("servers/a/url", "http://h:99999", "servers.a.url: 'http://h:99999' is no URL"),
        ("servers/a/url", "http://h:abc", "servers.a.url: 'http://h:abc' is no URL"),
        ("servers/a/url", "http://h:0", "servers.a.url: 'http://h:0' has port 0; allowed: http://host:port"),
        ("servers/a/url", "http://[::1", "servers.a.url: 'http://[::1' is no URL"),
        ("servers/a/url", "http://:80", "servers.a.url: 'http://:80' names no host; allowed: http://host:port"),
        ("servers/a/url", "http:///v1", "servers.a.url: 'http:///v1' names no host"),
        ("servers/a/url", "http://h?a=b", "servers.a.url: 'http://h?a=b' is more than a server's address"),
        ("matrix/prefill/contexts", [512.0], "matrix.prefill.contexts.0: 512.0 is no size; allowed"),
        ("matrix/decode/concurrency", [1.0], "matrix.decode.concurrency.0: 1.0 is not of type 'integer'"),
        ("measure/seed", 1.0, "measure.seed: 1.0 is not of type 'integer'"),
        ("measure/request", {"n": 4}, "measure.request: 'n' is set by speed-matrix itself; allowed: other fields"),
        ("measure/request", {"max_tokens": 5}, "measure.request: 'max_tokens' is set by speed-matrix itself"),
        ("measure/stall_s", 10**400, "measure.stall_s: "),
    ],
)
def test_an_error_is_one_line_with_its_key(path, value, said):
    raw = changed(path, value)
    if path == "servers/../up":
        raw["servers"] = {"../up": value}
    with pytest.raises(ConfigError) as caught:
        config.parse(raw)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_in_place_of_a_variables_name_is_refused_and_not_repeated():
    with pytest.raises(ConfigError) as caught:
        config.parse(changed("servers/a/api_key_env", "sk-verysecret"))
    assert "api_key_env" in str(caught.value) and "verysecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("url", "http://user:verysecret@host"),
        ("url", ["verysecret"]),
        ("launch/command", {"--api-key": "verysecret"}),
        ("launch/env", {"HF_TOKEN": ["verysecret"]}),
        ("facts", {"my_token": ["verysecret"]}),
    ],
)
def test_a_secret_in_the_wrong_place_is_not_repeated(path, value):
    with pytest.raises(ConfigError) as caught:
        config.parse(changed(f"servers/a/{path}", value))
    assert f"servers.a.{path.replace('/', '.')}" in str(caught.value) and "verysecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("servers: {7: {engine: vllm}}", "servers: the key 7 is no text; allowed: text, in quotes"),
        ("measure: {duration_s: .nan}", "measure.duration_s: nan can't be used; allowed: finite numbers"),
        ("measure: {settle_s: -.inf}", "measure.settle_s: -inf can't be used"),
        ("measure: {request: {temperature: [.inf]}}", "measure.request.temperature.0: inf can't be used"),
        ("measure: {request: {day: 2026-12-01}}", "measure.request.day: a date can't be used"),
        ("a: &a [*a]", "a.0.0: nested too deep"),
        ("day: 2026-13-45", "not valid YAML: month must be in 1..12"),
        ("a:\n\tb: 1", "not valid YAML"),
        ("", "a mapping"),
    ],
)
def test_what_a_config_cannot_hold_is_said_before_anything_runs(text, said, tmp_path, monkeypatch):
    monkeypatch.setenv(config.SOURCE_ENV, "")
    (tmp_path / "c.yaml").write_text(text)
    for read in (config.read, lambda files: config.to_environment(files, {})):
        with pytest.raises(ConfigError) as caught:
            read([str(tmp_path / "c.yaml")])
        assert said in str(caught.value) and "\n" not in str(caught.value)


def test_no_number_from_the_command_line_either(tmp_path, monkeypatch):
    monkeypatch.setenv(config.SOURCE_ENV, "")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(BASE))
    with pytest.raises(ConfigError, match=r"measure\.duration_s: nan can't be used"):
        config.to_environment([str(tmp_path / "c.yaml")], {"measure": {"duration_s": ".nan"}})


def test_a_file_in_another_encoding_is_named(tmp_path):
    (tmp_path / "c.yaml").write_bytes("title: é".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"c\.yaml: byte 7 is no UTF-8"):
        config.read([str(tmp_path / "c.yaml")])


def test_missing_variables_are_named(monkeypatch):
    raw = changed("servers/a/api_key_env", "MY_KEY")
    raw["servers"]["a"]["launch"]["env"] = {"HF_TOKEN": "{env:MY_HF}"}
    monkeypatch.setenv("MY_KEY", "x")
    monkeypatch.delenv("MY_HF", raising=False)
    assert config.parse(raw).missing_variables() == ["servers.a.launch: the variable MY_HF is not set"]


def test_yaml_errors_name_the_file(tmp_path):
    for text, said in (("servers: {", "not valid YAML"), ("- 1", "a mapping"), ("a: 1\na: 2", "stands twice")):
        (tmp_path / "c.yaml").write_text(text)
        with pytest.raises(ConfigError, match=said) as caught:
            config.read([str(tmp_path / "c.yaml")])
        assert "c.yaml" in str(caught.value) and "\n" not in str(caught.value)


def test_overrides_lie_over_the_file(tmp_path):
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(BASE))
    read = config.read([str(tmp_path / "c.yaml")], {"measure": {"duration_s": 1}})
    assert read.measure.duration_s == 1


def test_what_the_command_line_hands_over_as_text_is_typed(tmp_path, monkeypatch):
    monkeypatch.setenv(config.SOURCE_ENV, "")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(BASE))
    given = {"measure": {"duration_s": "1.5", "seed": "7", "nonce": "null"}, "title": "A: b"}
    config.to_environment([str(tmp_path / "c.yaml")], given | {"matrix": {"decode": {"contexts": ["8K", "100"]}}})
    (tmp_path / "c.yaml").write_text("edited: while the sweep runs")
    read = config.from_environment()
    assert (read.measure.duration_s, read.measure.seed, read.measure.nonce, read.title) == (1.5, 7, None, "A: b")
    assert read.decode_contexts == (100, 8192)


def params(raw: dict, name: str) -> str:
    read = config.parse(raw)
    return read.params(next(cell for cell in read.cells() if cell.name == name))


def test_a_change_of_decode_leaves_prefill_alone():
    for key, value in (("duration_s", 5), ("max_output_tokens", 99), ("settle_s", 3), ("ramp_timeout_s", 9)):
        after = changed(f"measure/{key}", value)
        assert params(after, "prefill-1K") == params(BASE, "prefill-1K")
        assert params(after, "decode-512-x1") != params(BASE, "decode-512-x1")


def test_another_context_leaves_the_cells_that_are_there_alone():
    after = changed("matrix/decode/contexts", [512, "2K", "4K"])
    for name in ("prefill-1K", "decode-512-x1", "decode-2K-x2"):
        assert params(after, name) == params(BASE, name)


@pytest.mark.parametrize(
    ("path", "value"),
    [("measure/seed", 1), ("servers/a/launch/command", ["run", 8]), ("servers/a/capacity", {"kv_tokens": 5})],
)
def test_what_affects_a_cell_is_in_its_params(path, value):
    assert params(changed(path, value), "prefill-1K") != params(BASE, "prefill-1K")


def test_a_price_affects_no_cell():
    read, priced = config.parse(BASE), config.parse(changed("servers/a/price_per_hour", 4.5))
    assert cost.prices(priced) == {"a": 4.5} and cost.prices(read) == {}
    assert [read.params(cell) for cell in read.cells()] == [priced.params(cell) for cell in priced.cells()]


def test_failed_attempts_are_in_the_params(tmp_path):
    before = params(BASE, "prefill-1K")
    folder = tmp_path / "results/history/a"
    folder.mkdir(parents=True)
    (folder / "prefill-1K.20261201T000000.000000Z.json").write_text(json.dumps({"status": "failed"}, indent=1))
    (folder / "prefill-1K.20261201T000001.000000Z.json").write_text(json.dumps({"status": "valid"}, indent=1))
    after = params(BASE, "prefill-1K")
    assert json.loads(before)["failed_attempts"] == 0
    assert json.loads(after)["failed_attempts"] == 1


def test_another_cells_attempts_are_not_this_cells(tmp_path):
    folder = tmp_path / "results/history/a"
    folder.mkdir(parents=True)
    (folder / "decode-512-x1.r2.20261201T000000.000000Z.json").write_text(json.dumps({"status": "failed"}, indent=1))
    assert json.loads(params(changed("measure/repeats", 2), "decode-512-x1"))["failed_attempts"] == 0
    assert json.loads(params(changed("measure/repeats", 2), "decode-512-x1.r2"))["failed_attempts"] == 1


SECRETS = {
    "servers": {
        "a": {
            "engine": "vllm",
            "url": "http://127.0.0.1:9",
            "api_key_env": "MY_KEY",
            "launch": {
                "command": [
                    "vllm",
                    "serve",
                    "m",
                    "--api-key",
                    "planted-1",
                    "--hf-token=planted-2",
                    "--max-num-seqs",
                    "8",
                ],
                "env": {"HF_TOKEN": "planted-3", "OTHER_TOKEN": "{env:OTHER}", "MAX_TOKENS": "5"},
            },
        },
        "b": {
            "engine": "vllm",
            "url": "http://127.0.0.1:10",
            "launch": {"command": "API_KEY=planted-4 vllm serve m --port 10"},
            "facts": {"launch_command": "vllm serve --api-key planted-5"},
        },
    },
    "measure": {"request": {"api_key": "planted-6", "temperature": 0}},
    "report": {"slo": {"ttft_ms": 500}},
}


def test_the_config_as_the_page_shows_it_measures_the_same_and_holds_no_secret(monkeypatch):
    monkeypatch.setenv(config.SOURCE_ENV, json.dumps(SECRETS))
    shown = config.resolved()
    assert "planted" not in shown and "api_key_env: MY_KEY" in shown and "'{env:OTHER}'" in shown
    for said in ("--max-num-seqs", "MAX_TOKENS: '5'", "duration_s: 30", "vllm serve m --port 10", "temperature: 0"):
        assert said in shown, said
    again, own = config.parse(yaml.safe_load(shown)), config.from_environment()
    assert again.cells() == own.cells() and again.slo == own.slo == {"ttft_ms": 500}
    assert again.measure == dataclasses.replace(own.measure, request={"api_key": "<redacted>", "temperature": 0})


def test_what_the_page_says_of_the_config_follows_it(monkeypatch):
    monkeypatch.setenv(config.SOURCE_ENV, json.dumps(SECRETS))
    before = config.said()
    monkeypatch.setenv(config.SOURCE_ENV, json.dumps(SECRETS | {"report": {"slo": {"ttft_ms": 501}}}))
    assert config.said() != before


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h:1", "http://h:1"),
        ("http://h:1//", "http://h:1"),
        ("http://h:1/v1/chat/completions", "http://h:1"),
        ("http://h:1/v1/completions/", "http://h:1"),
        ("http://h:1//v1//", "http://h:1"),
        ("https://h/llm/v1", "https://h/llm"),
        ("https://h/v1/llm", "https://h/v1/llm"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("http://h/completions", "http://h/completions"),
    ],
)
def test_the_servers_address_is_what_stands_before_the_apis_paths(url, base):
    (server,) = config.parse({"servers": {"a": {"engine": "openai", "url": url}}}).servers.values()
    assert server.url == base
