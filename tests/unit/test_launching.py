"""How a server was started: from the config, from its process; options told apart; nothing secret shown."""

import subprocess
import sys

import pytest

from speedmatrix import launching
from speedmatrix.cells import Capacity
from speedmatrix.config import Launch, Server
from speedmatrix.engines import Vllm
from tests.unit.test_engines import MODELS, VERSION, engine, info


def server(command=None, facts=None, url="http://192.0.2.1:9", **env) -> Server:
    launch = Launch(command, env, 1, 1, 1) if command else None
    return Server("s", "vllm", url, launch, None, None, facts or {}, Capacity(), None)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("serve m --tensor-parallel-size 8 --x", "8"),
        ("serve m --tensor-parallel-size=8", "8"),
        ("serve m -tp 4 -tp 2", "2"),
        ("serve m -tp --x", ""),
        ("serve m --tensor-parallel-size-not 3", None),
        ("serve m -tp", ""),
        ("serve m --tensor_parallel_size 8", "8"),
        ("serve m --tensor_parallel-size=8", "8"),
        ("serve m -tp 4 serve m -tp $TP", "4"),  # the process's own words, then the config's
        ("serve m -tp=${TP}", None),
    ],
)
def test_an_options_value_is_the_last_one(words, value):
    assert launching.option(words.split(), "--tensor-parallel-size", "-tp") == value


@pytest.mark.parametrize(
    ("command", "value"),
    [("serve m -tp 4; echo", "4"), ("cd x&&serve m -tp 4&", "4"), ("serve 'm;n' -tp 4|tee log", "4")],
)
def test_what_a_shell_ends_a_word_with_is_not_of_it(command, value):
    assert launching.option(launching.words_of(server(command)), "-tp") == value


@pytest.mark.parametrize(
    ("words", "on"),
    [
        ("serve m", None),
        ("serve m --enable-prefix-caching", True),
        ("serve m --enable_prefix_caching", True),
        ("serve m --no-enable-prefix-caching", False),
        ("serve m --no-enable-prefix-caching --enable-prefix-caching", True),
        ("serve m --enable-prefix-caching --no-enable_prefix_caching", False),
    ],
)
def test_of_a_switch_and_its_contrary_the_last_one_holds(words, on):
    assert launching.switch(words.split(), "enable-prefix-caching") is on


def test_a_context_parallel_size_that_is_no_number_leaves_capacity_unknown():
    blocks = info(engine=0, num_gpu_blocks=100, block_size=16)
    answers = {"/v1/models": MODELS, "/version": VERSION, "/metrics": (blocks,)}
    stated = {"launch_command": "vllm serve m --decode-context-parallel-size two"}
    assert engine(Vllm, answers, facts=stated).facts().capacity.kv_tokens is None


def test_a_command_is_shown_without_its_secrets():
    assert launching.shown(server("vllm serve m --api-key X1234 ", A="b")) == "A=b vllm serve m --api-key <redacted> "
    assert launching.shown(server(("{python}", "-m", "x y"), A="b")) == "env A=b python -m 'x y'"
    assert launching.shown(server(facts={"launch_command": "vllm serve m --api-key=X1234"})).endswith("<redacted>")
    assert launching.shown(server()) is None


def test_an_engine_that_listens_on_this_host_tells_its_command_and_others_do_not(tmp_path):
    program = tmp_path / "llama-server"
    program.write_text(
        "import http.server, sys\n"
        "served = http.server.HTTPServer(('127.0.0.1', 0), http.server.BaseHTTPRequestHandler)\n"
        "print(served.server_port, flush=True)\n"
        "served.serve_forever()\n"
    )
    other = tmp_path / "something"
    other.write_text(program.read_text())
    for script, known in ((program, True), (other, False)):
        process = subprocess.Popen(
            [sys.executable, str(script), "--api-key", "X1234"], stdout=subprocess.PIPE, text=True
        )
        try:
            url = f"http://localhost:{process.stdout.readline().strip()}/v1"
            shown = launching.shown(server(url=url))
            assert (shown or "").endswith("llama-server --api-key <redacted>") if known else shown is None
        finally:
            process.kill()
            process.wait()


COMMAND = (
    "env X=1 vllm serve m --tensor-parallel-size 8 -dp 2 --quantization fp8 --attention-backend FLASHINFER"
    " --no-enable-prefix-caching --max-num-seqs=64 --revision abc"
)


def test_vllms_facts_from_its_launch_command():
    answers = {"/v1/models": MODELS, "/version": VERSION, "/metrics": (info(engine=0, kv_cache_size_tokens=10),)}
    told = engine(Vllm, answers, facts={"launch_command": COMMAND, "revision": "stated"}).facts().served
    assert (told["tensor_parallel"], told["data_parallel"], told["max_num_seqs"]) == ("8", "2", "64")
    assert (told["quantization"], told["attention_backend"], told["prefix_caching"]) == ("fp8", "FLASHINFER", "off")
    assert told["revision"] == "stated" and told["pipeline_parallel"] is None


def test_blocks_are_each_of_a_context_parallel_groups_size():
    answers = {
        "/v1/models": MODELS,
        "/version": VERSION,
        "/metrics": (info(engine=0, num_gpu_blocks=10, block_size=16),),
    }
    made = engine(Vllm, answers, facts={"launch_command": "vllm serve m -dcp 4"})
    assert (made.facts().capacity.kv_tokens, made.facts().capacity.kv_source) == (
        640,
        "blocks × block size × context-parallel size 4",
    )
