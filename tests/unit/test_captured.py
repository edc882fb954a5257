"""Captured answers of real servers, read as they are (tests/engines: vLLM 0.32, SGLang 0.5.23, xllamacpp; on CPUs)."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedmatrix import sse
from speedmatrix.cells import Capacity
from speedmatrix.engines import Counters, LlamaCpp, Vllm
from speedmatrix.engines.sglang import SGLang
from tests.unit.test_engines import engine

ENGINES = Path(__file__).parents[1] / "engines"
STREAMS = sorted(ENGINES.glob("*/*.sse"))
ASKED = 12  # tokens, of each


def read(stream: bytes, cuts=()) -> tuple[list[int], sse.Counter, list[sse.Event]]:
    decoder, counter, counts, events = sse.Decoder(), sse.Counter(), [], []
    edges = [0, *sorted(cuts), len(stream)]
    for start, end in itertools.pairwise(edges):
        for data in decoder.feed(stream[start:end]):
            if data != sse.DONE:
                events.append(sse.parse(data))
                counts.append(counter.arrived(events[-1]))
    return counts, counter, events


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_captured_streams_tokens(path):
    counts, counter, events = read(path.read_bytes())
    usage = path.stem.partition("-")[2]
    assert next(event.finish for event in reversed(events) if event.finish) == "length"
    if usage == "running":
        assert (sum(counts), counter.source) == (ASKED, "usage")
        assert events[-1].prompt_tokens or events[-2].prompt_tokens
    elif usage == "final":
        assert (counter.final, counter.source) == (ASKED, "reconciled") and sum(counts) <= ASKED
    elif path.parent.name != "llamacpp":
        assert counter.source == "events" and 0 < sum(counts) <= ASKED
    else:  # llama.cpp tells its timings with the last event, asked or not
        assert (counter.final, counter.source) == (ASKED, "reconciled")


@given(st.sampled_from(STREAMS), st.lists(st.integers(0, 3000), max_size=9))
def test_a_captured_stream_is_the_same_however_its_bytes_arrive(path, cuts):
    stream = path.read_bytes()
    assert read(stream, [cut % (len(stream) + 1) for cut in cuts])[0] == read(stream)[0]


def pages(name: str) -> dict[str, tuple]:
    found = {}
    for path in (ENGINES / name).glob("*.txt"):
        text = path.read_text()
        found["/" + path.stem.replace("v1_", "v1/")] = (text if path.stem == "metrics" else json.loads(text),)
    return found


def test_vllms_captured_pages():
    made = engine(Vllm, pages("vllm"))
    facts, counters = made.facts(), made.counters()
    assert facts.served["version"].startswith("0.32") and facts.served["model"] == "tiny"
    assert facts.capacity.kv_source == "kv_cache_size_tokens" and facts.capacity.max_context == 16384
    assert facts.capacity.kv_tokens > 100_000 and facts.capacity.ranks == 1
    assert (counters.running, counters.waiting, made.requests_inside()) == (0, 0, 0)
    known = (counters.generated, counters.prefix_hits, counters.preemptions, counters.prefill_s, counters.prefills)
    assert None not in known


def test_llama_cpps_captured_pages():
    made = engine(LlamaCpp, pages("llamacpp"), facts={"launch_command": "llama-server -np 2 --kv-unified"})
    facts, counters = made.facts(), made.counters()
    assert facts.capacity == Capacity(4096, 4096, 2, "one pool shared by all slots (--kv-unified)")
    assert facts.served["parameters"] > 1_000_000 and made.requests_inside() == 0
    assert counters.running == 0 and counters.generated is not None


def test_sglangs_captured_pages():
    made = engine(SGLang, pages("sglang"))
    facts = made.facts()
    assert facts.capacity == Capacity(16384, 8192, 4, "max_total_num_tokens", 1)
    told = [facts.served[fact] for fact in ["version", "model", "prefix_caching", "attention_backend"]]
    assert told == ["0.5.23", "tiny", "on", "torch_native"]
    # Its one request's 8 tokens: 7 of decode steps and one of prefill.
    assert made.counters() == Counters(waiting=0, generated=8, prefix_hits=0, preemptions=0)
    assert made.requests_inside() == 0
