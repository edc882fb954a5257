"""The default engine: its model is the same every time, and what it serves is visible text."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from speedmatrix import embedded, launching, processes
from speedmatrix.cells import Capacity
from speedmatrix.config import Launch, Server
from speedmatrix.engines import LlamaCpp
from speedmatrix.engines.llamacpp import one_pool


def test_the_model_is_written_once_with_its_checksum(tmp_path):
    path = embedded.ensure_model(tmp_path)
    written = path.stat().st_mtime_ns
    assert path.with_name(path.name + ".sha256").read_text() == f"{embedded.checksum(path)}  {path.name}\n"
    assert path.stat().st_size < 16_000_000
    assert embedded.ensure_model(tmp_path) == path and path.stat().st_mtime_ns == written


def test_a_damaged_model_is_written_anew_with_the_same_bytes(tmp_path):
    path = embedded.ensure_model(tmp_path)
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(path.read_bytes()[:1000])
    assert hashlib.sha256(embedded.ensure_model(tmp_path).read_bytes()).hexdigest() == right
    assert len(list(tmp_path.iterdir())) == 2


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    folder = tmp_path_factory.mktemp("model")
    command = [sys.executable, "-m", "speedmatrix.embedded", "--port", str(port), "--model-dir", str(folder)]
    command += ["--context", "8192", "--slots", "2", "--kv-unified"]
    process = subprocess.Popen(
        command, env=processes.importable(os.environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if requests.get(url + "/health", timeout=1).ok:
                break
        except requests.RequestException:
            time.sleep(0.1)
    yield url, process
    process.kill()
    process.wait()


def engine(url: str, command: str = "x --kv-unified") -> LlamaCpp:
    return LlamaCpp(Server("s", "llama.cpp", url, None, None, None, {"launch_command": command}, Capacity(), None))


def test_each_event_carries_one_visible_character(served):
    url, _ = served
    body = {"prompt": [1, 70, 71], "max_tokens": 100, "ignore_eos": True, "stream": True, "timings_per_token": True}
    answer = requests.post(url + "/v1/completions", json=body, timeout=30)
    data = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    events = [json.loads(line) for line in data]
    texts = [event["choices"][0]["text"] for event in events[:-1]]
    assert len(texts) == 100
    assert all(len(text) == 1 and (text.isalpha() or text in " ,.\n") for text in texts)
    assert [event["timings"]["predicted_n"] for event in events] == [*range(1, 101), 100]


def test_the_adapter_reads_its_facts(served):
    facts = engine(served[0]).facts()
    assert facts.served["model"] == "tiny-llama" and facts.served["quantization"] == "Q5_1"
    assert (facts.capacity.kv_tokens, facts.capacity.max_context, facts.capacity.max_concurrency) == (8192, 8192, 2)


@pytest.fixture
def unseen(monkeypatch):
    """A server whose process can't be seen, as on another host."""
    monkeypatch.setattr(launching, "_of_listener", lambda url: None)


def test_the_servers_own_process_tells_how_it_was_started(served):
    server = Server(
        "s", "llama.cpp", served[0].replace("127.0.0.1", "localhost"), None, None, None, {}, Capacity(), None
    )
    assert "speedmatrix.embedded" in launching.shown(server) and "--kv-unified" in launching.words_of(server)
    assert LlamaCpp(server).facts().capacity.kv_tokens == 8192


def test_split_slots_add_up_where_the_pool_is_not_unified(served, unseen):
    # The same /props; only the launch command tells that the slots do not share one pool.
    assert engine(served[0], "llama-server -np 2").facts().capacity.kv_tokens == 2 * 8192


UNKNOWN = "unknown: slots may share one pool; say facts.launch_command or capacity.kv_tokens"


@pytest.mark.parametrize("command", [None, "./start.sh", "llama-server -np 2 --kv-unified-per-slot 4096"])
def test_what_the_launch_does_not_tell_is_unknown_unless_stated(served, command, unseen):
    facts = {"launch_command": command} if command else {}
    server = Server("s", "llama.cpp", served[0], None, None, None, facts, Capacity(), None)
    capacity = LlamaCpp(server).facts().capacity
    assert (capacity.kv_tokens, capacity.kv_source, capacity.max_context) == (None, UNKNOWN, 8192)
    stated = LlamaCpp(replace(server, capacity=Capacity(kv_tokens=5000, kv_source="config"))).facts().capacity
    assert (stated.kv_tokens, stated.kv_source) == (5000, "config")


def test_a_launch_that_does_not_tell_is_helped_by_the_facts(served, unseen):
    launch = Launch("./start.sh", {}, 1, 1, 1)
    facts = {"launch_command": "llama-server -np 2 --kv-unified"}
    server = Server("s", "llama.cpp", served[0], launch, None, None, facts, Capacity(), None)
    assert LlamaCpp(server).facts().capacity.kv_tokens == 8192


def test_one_slots_pool_is_known_without_a_word(served, monkeypatch, unseen):
    adapter = engine(served[0], "./start.sh")
    read = adapter._json
    monkeypatch.setattr(adapter, "_json", lambda *call: read(*call) | ({"total_slots": 1} if "/props" in call else {}))
    assert adapter.facts().capacity.kv_tokens == 8192


def test_variables_of_the_launch_tell_too(served):
    for name, value, tokens in (("LLAMA_ARG_KV_UNIFIED", "1", 8192), ("LLAMA_ARG_KV_UNIFIED", "off", 2 * 8192)):
        launch = Launch("llama-server -np 2", {name: value}, 1, 1, 1)
        server = Server("s", "llama.cpp", served[0], launch, None, None, {}, Capacity(), None)
        assert LlamaCpp(server).facts().capacity.kv_tokens == tokens


@pytest.mark.parametrize(
    ("command", "shared"),
    [
        ("llama-server -np 4", False),
        ("llama-server --parallel 4 -kvu", True),
        ("llama-server -np 4 --kv-unified --no-kv-unified", False),
        ("llama-server -np 4 -no-kvu", False),
        ("LLAMA_ARG_KV_UNIFIED=true llama-server -np 4", True),
        ("LLAMA_ARG_KV_UNIFIED=1 llama-server -np 4 --no-kv-unified", False),
        ("LLAMA_ARG_KV_UNIFIED=0 llama-server -np 4", False),
        ("docker run -e LLAMA_ARG_KV_UNIFIED=1 image -np 4", True),
        ("sh -c '/opt/bin/llama-server -np 4 --kv-unified'", True),
        ("/opt/bin/llama-server -m a.gguf", True),
        ("llama-server -np -1", True),
        ("LLAMA_ARG_N_PARALLEL=4 llama-server", False),
        ("llama-server --no-kv-unified", None),
        ("llama-server -np 4 --kv-unified --kv-unified-per-slot 4096", None),
        ("python -m speedmatrix.embedded --slots 4", False),
        ("./start.sh", None),
        ("", None),
    ],
)
def test_whether_slots_share_one_pool_by_how_they_were_started(command, shared):
    assert one_pool(command) is shared


def test_the_adapter_tokenizes_with_and_without_the_opening(served):
    assert engine(served[0]).tokenize("é", False) == [3 + 0xC3, 3 + 0xA9]
    assert engine(served[0]).tokenize("", True) == [1]


def test_the_counter_of_generated_tokens_counts_them(served):
    adapter = engine(served[0])
    before = adapter.counters().generated
    body = {"prompt": [1, 70, 71], "max_tokens": 500, "ignore_eos": True}
    assert (
        requests.post(served[0] + "/v1/completions", json=body, timeout=30).json()["usage"]["completion_tokens"] == 500
    )
    assert adapter.counters().generated - before == pytest.approx(500, abs=5)
    assert adapter.requests_inside() == 0


def test_sigterm_ends_it_at_once(served):
    _, process = served
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=2) == 0


def test_it_finds_its_place_in_the_users_cache(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert embedded.default_directory() == Path("/somewhere/speed-matrix")
