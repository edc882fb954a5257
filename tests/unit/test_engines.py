"""Adapters on captured and constructed answers: facts, capacity with its source, counters summed."""

from dataclasses import replace

import pytest
import requests

from speedmatrix import servers
from speedmatrix.cells import Capacity
from speedmatrix.config import Server
from speedmatrix.engines import ENGINES, Counters, EngineError, OpenAI, Vllm, http
from speedmatrix.engines.sglang import SGLang


class Answer:
    """An HTTP answer, constructed."""

    def __init__(self, body, status=200):
        self.text = body if isinstance(body, str) else ""
        self.content, self.status_code, self.headers = self.text.encode(), status, {}
        self._body = body

    def json(self):
        if isinstance(self._body, str):
            raise ValueError
        return self._body


def engine(kind, answers, **server):
    """An adapter whose server gives `answers` by path; 404 for all others."""
    stated = {"model": None, "facts": {}, "capacity": Capacity()} | server
    made = kind(Server("s", "vllm", "http://127.0.0.1:9", None, None, hardware=None, **stated))
    made._request = lambda method, url, body, timeout_s: Answer(*answers.get(url.split(":9")[1], ("Not Found", 404)))
    return made


MODELS = ({"data": [{"id": "m", "max_model_len": 32768}]},)
VERSION = ({"version": "0.32.1.dev3+gabcdef0123"},)


def vllm(metrics: str, **server) -> Vllm:
    return engine(Vllm, {"/v1/models": MODELS, "/version": VERSION, "/metrics": (metrics,)}, **server)


def info(**labels) -> str:
    told = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return "vllm:cache_config_info{" + told + "} 1\n"


@pytest.mark.parametrize(
    ("metrics", "tokens", "ranks", "source"),
    [
        (info(engine=0, kv_cache_size_tokens=1000), 1000, 1, "kv_cache_size_tokens"),
        # A hybrid model: blocks × block size would be 18 times too much.
        (
            info(engine=0, kv_cache_size_tokens=1000, num_gpu_blocks=1125, block_size=16),
            1000,
            1,
            "kv_cache_size_tokens",
        ),
        (info(engine=0, num_gpu_blocks=100, block_size=16), 1600, 1, "blocks × block size"),
        (
            info(engine=0, kv_cache_size_tokens=1000) + info(engine=1, kv_cache_size_tokens=1100),
            2100,
            2,
            "kv_cache_size_tokens",
        ),
        (info(engine=0, block_size=16), None, 1, "unknown: /metrics does not tell"),
        ("", None, 1, "unknown: /metrics does not tell"),
        ("<html>Bad Gateway</html>", None, 1, "unknown: /metrics does not tell"),
    ],
)
def test_vllms_capacity_comes_with_its_source(metrics, tokens, ranks, source):
    facts = vllm(metrics).facts()
    assert facts.capacity == Capacity(tokens, 32768, None, source, ranks)
    assert (facts.served["version"], facts.served["commit"]) == ("0.32.1.dev3+gabcdef0123", "abcdef0123")


def test_what_the_config_states_goes_over_what_was_detected_and_leaves_the_rest():
    two = info(engine=0, kv_cache_size_tokens=1000) + info(engine=1, kv_cache_size_tokens=1000)
    told = vllm(two, capacity=Capacity(kv_tokens=900, kv_source="config"), facts={"quantization": "fp8"}).facts()
    assert told.capacity == Capacity(900, 32768, None, "config", 2)
    assert told.served["quantization"] == "fp8"


def test_vllms_counters_are_summed_over_engines_and_unknown_is_not_zero():
    rows = 'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
    rows += 'vllm:num_requests_waiting{engine="0"} 1\nvllm:num_requests_waiting{engine="1"} 0\n'
    rows += 'vllm:generation_tokens_total{engine="0"} 50\nvllm:generation_tokens_total{engine="1"} 70\n'
    made = vllm(rows)
    assert made.counters() == Counters(running=7, waiting=1, generated=120)
    assert made.requests_inside() == 8
    assert vllm("").requests_inside() is None and vllm("").counters() == Counters()


def test_what_the_server_told_is_kept_by_name_and_nothing_else():
    assert Counters(running=0, generated=10).told(1.5) == {"t_s": 1.5, "running": 0, "generated": 10}


@pytest.mark.parametrize("name", ENGINES)
def test_several_models_ask_for_one_and_list_them(name):
    three = ({"data": [{"id": "a"}, {"id": "b"}, {"id": "c"}]},)
    with pytest.raises(EngineError, match=r"^servers\.s\.model: name the model to measure; .* lists: a, b, c$"):
        engine(ENGINES[name], {"/v1/models": three}).model()
    assert engine(ENGINES[name], {"/v1/models": three}, model="b").model() == "b"
    with pytest.raises(EngineError, match="does not serve 'x'; it lists: a, b, c"):
        engine(ENGINES[name], {"/v1/models": three}, model="x").model()


def test_of_an_openai_server_only_what_the_config_says_is_known():
    made = engine(OpenAI, {"/v1/models": MODELS}, facts={"version": "7"}, capacity=Capacity(max_context=4096))
    facts = made.facts()
    assert made.healthy() and facts.capacity == Capacity(max_context=4096)
    assert (facts.served["model"], facts.served["version"]) == ("m", "7")
    assert made.counters() == Counters() and made.requests_inside() is None
    with pytest.raises(EngineError, match="has no tokenizer"):
        made.tokenize("a", True)


def test_a_kept_connection_that_the_server_dropped_is_no_fault(monkeypatch):
    made = Vllm(Server("s", "vllm", "http://127.0.0.1:9", None, None, None, {}, Capacity(), None))
    tried = []

    def once_dropped(_session, _method, url, _body, _timeout_s):
        tried.append(url)
        if len(tried) == 1:
            raise requests.ConnectionError("Remote end closed connection without response")
        return Answer({"data": [{"id": "m"}]})

    monkeypatch.setattr(http, "fetch", once_dropped)
    assert made.model() == "m" and len(tried) == 2


# SGLang's answers for several ranks are constructed, by the source of its 0.5.23 (one rank's are captured).
SGLANG = {
    "version": "0.5.23", "tp_size": 8, "dp_size": 2, "context_length": None, "quantization": "fp8", "revision": None,
    "attention_backend": "fa3", "disable_radix_cache": True, "max_total_num_tokens": 400_000,
    "max_running_requests": 256, "internal_states": [{"effective_max_running_requests_per_dp": 128}] * 2,
}  # fmt: skip
SGLANG_LOADS = {
    "loads": [
        {"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 1},
        {"dp_rank": 1, "num_running_reqs": 2, "num_waiting_reqs": 0},
    ]
}


def sglang_rows(name: str, value: float, **labels) -> str:
    """A metric's rows: one data-parallel rank's members all tell the same."""
    told = "".join(f',{key}="{text}"' for key, text in labels.items())
    return "".join(f'sglang:{name}{{model_name="m",tp_rank="{tp}",pp_rank="0"{told}}} {value}\n' for tp in range(2))


SGLANG_METRICS = (
    sglang_rows("num_running_reqs", 9, dp_rank=0)  # 40 steps old
    + sglang_rows("num_queue_reqs", 4, dp_rank=0)
    + sglang_rows("realtime_tokens_total", 1000, mode="decode", dp_rank=0)
    + sglang_rows("realtime_tokens_total", 500, mode="decode", dp_rank=1)
    + sglang_rows("realtime_tokens_total", 70, mode="prefill_cache", dp_rank=1)
    + sglang_rows("realtime_tokens_total", 9000, mode="prefill_compute", dp_rank=1)
    + 'sglang:num_requests_total{model_name="m"} 12\nsglang:num_requests_total{model_name="m",priority="1"} 5\n'
)


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_sglangs_facts_and_capacity_from_its_arguments(path):
    made = engine(SGLang, {path: (SGLANG,), "/v1/models": MODELS})
    facts = made.facts()
    assert facts.capacity == Capacity(800_000, 32768, 256, "max_total_num_tokens × 2", 2)
    told = [facts.served[fact] for fact in ["version", "quantization", "tensor_parallel", "prefix_caching"]]
    assert told == ["0.5.23", "fp8", 8, "off"] and facts.served["attention_backend"] == "fa3"


def test_an_sglang_that_does_not_tell_each_ranks_limit_has_the_one_it_was_started_with():
    older = SGLANG | {"internal_states": [{}], "max_running_requests": 48}
    assert engine(SGLang, {"/server_info": (older,), "/v1/models": MODELS}).facts().capacity.max_concurrency == 48


def test_sglangs_counters_are_of_every_step_and_summed_over_data_parallel_ranks_alone():
    made = engine(SGLang, {"/v1/loads": (SGLANG_LOADS,), "/metrics": (SGLANG_METRICS,)})
    # 1,000 + 500 of decode steps, and prefill's one of each of 12 requests that ended.
    assert made.counters() == Counters(waiting=1, generated=1512, prefix_hits=70, preemptions=0)
    assert made.requests_inside() == 6


def test_an_older_sglang_without_loads_has_its_gauges():
    made = engine(SGLang, {"/metrics": (SGLANG_METRICS,)})
    assert (made.counters().waiting, made.requests_inside()) == (4, 13)


@pytest.mark.parametrize("metrics", ["", sglang_rows("generation_tokens_total", 7.5e6)])
def test_an_sglang_that_counts_only_as_requests_end_has_no_count(metrics):
    made = engine(SGLang, {"/v1/loads": (SGLANG_LOADS,), "/metrics": (metrics,)})
    assert made.counters() == Counters(waiting=1) and made.requests_inside() == 6


def test_sglangs_requests_are_named_and_aborted_by_name():
    made = engine(SGLang, {})
    asked = []
    made._request = lambda method, url, body, timeout_s: asked.append((url.split(":9")[1], body)) or Answer({})
    assert made.naming("a-1") == {"rid": "a-1"}
    made.abort(["a-1", "a-2"])
    assert asked == [("/abort_request", {"rid": "a-1"}), ("/abort_request", {"rid": "a-2"})]
    assert vllm("").naming("a-1") == {}


@pytest.mark.parametrize(
    ("stated", "answers", "looks"),
    [
        ("vllm", {"/props": ({"total_slots": 1},), "/v1/models": MODELS}, "; it looks like llama.cpp ("),
        ("llama.cpp", {"/version": VERSION, "/v1/models": MODELS}, "; it looks like vllm ("),
        ("vllm", {"/server_info": (SGLANG,), "/v1/models": MODELS}, "; it looks like sglang ("),
        ("sglang", {"/v1/models": MODELS}, " does not answer as sglang does ("),
        ("vllm", {"/version": ({},), "/v1/models": MODELS}, " does not answer as vllm does ('"),
    ],
)
def test_a_wrong_engine_is_found_out_and_said(stated, answers, looks):
    made = engine(ENGINES[stated], answers)
    made.server = replace(made.server, engine=stated)
    with pytest.raises(servers.SweepError) as caught:
        servers.read_facts(made)
    said = str(caught.value)
    assert said.startswith(f"servers.s.engine: http://127.0.0.1:9 does not answer as {stated} does")
    assert (looks in said or looks.replace("('", "(KeyError('") in said) and "\n" not in said
