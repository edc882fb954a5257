"""A cell's reasons for failing that lie before its load, on an engine that is programmed."""

import asyncio

import aiohttp
import pytest

from speedmatrix import figures, measure
from speedmatrix.cells import Capacity, Cell
from speedmatrix.config import Server, parse
from speedmatrix.engines import Counters, EngineError, LlamaCpp

SETTINGS = parse({"servers": {"s": {"engine": "llama.cpp", "url": "http://127.0.0.1:9"}}})


class Programmed(LlamaCpp):
    """Answers what a server would; `inside` requests are in it whenever it is asked."""

    inside = 0
    models = ("m",)

    def _json(self, method, path, body=None):
        if path == "/v1/models":
            return {"data": [{"id": name} for name in self.models]}
        raise EngineError(f"{path} was asked for")

    def tokenize(self, text, with_special):
        return ([1] if with_special else []) + list(text.encode())

    def requests_inside(self):
        return self.inside


def engine(**changes) -> Programmed:
    made = Programmed(Server("s", "llama.cpp", "http://127.0.0.1:9", None, None, None, {}, Capacity(), None))
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def failure(phase: str, made: Programmed) -> str:
    with pytest.raises(measure.Failed) as caught:
        measure.run(measure.Task(Cell("s", phase, 100), SETTINGS.measure, made, Capacity()))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_server_that_is_busy_is_not_measured(phase, monkeypatch):
    monkeypatch.setattr(measure, "IDLE_TIMEOUT_S", 0.2)
    assert "server busy: 3 requests still run or wait there after 0.2 s" in failure(phase, engine(inside=3))


def test_a_stale_gauge_is_cured_by_a_probe(monkeypatch):
    monkeypatch.setattr(measure, "IDLE_TIMEOUT_S", 0.4)
    made = engine(inside=2)
    made.probe = lambda: setattr(made, "inside", 0)
    assert asyncio.run(measure._idle(made))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_server_that_is_gone_is_said_to_be(phase):
    assert "the server can't be reached" in failure(phase, engine())


def test_three_models_ask_for_one_by_name():
    said = failure("decode", engine(models=("a", "b", "c")))
    assert said == "servers.s.model: name the model to measure; http://127.0.0.1:9 lists: a, b, c"


def test_no_model_at_all():
    assert failure("decode", engine(models=())).endswith("lists: none")


def edges(first: Counters, last: Counters) -> dict:
    """What the counters at the window's two edges, ten seconds apart, give."""
    return figures.by_server(first.told(0.0), last.told(10.0))


def test_the_servers_own_speed_and_the_acceptance_length_of_speculative_decoding():
    first = Counters(running=4, generated=1000, drafts=100, accepted=50)
    # 2,500 tokens in 10 s; 1,000 drafts of which 1,500 tokens were accepted: 2.5 tokens a step with the sure one.
    told = edges(first, Counters(running=2, generated=3500, drafts=1100, accepted=1550))
    assert (told["server_tok_s"], told["acceptance_length"], told["server_active_avg"]) == (250, 2.5, 3)


def test_what_the_server_does_not_tell_or_counts_backwards_is_unknown():
    unknown = {"server_tok_s": None, "server_active_avg": None, "acceptance_length": None}
    assert edges(Counters(), Counters()) == unknown
    assert edges(Counters(generated=500, drafts=9, accepted=9), Counters(generated=20, drafts=1)) == unknown
    assert edges(Counters(drafts=5, accepted=5), Counters(drafts=5, accepted=5))["acceptance_length"] is None


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(
    "odd", [TypeError("'<' not supported"), KeyError("tokens"), ValueError("NaN"), aiohttp.ClientPayloadError()]
)
def test_an_answer_that_nobody_thought_of_fails_the_cell_in_one_line(phase, odd):
    def requests_inside():
        raise odd

    assert f"could not be made sense of ({type(odd).__name__}" in failure(
        phase, engine(requests_inside=requests_inside)
    )
