"""The stream decoder: what the SSE standard says, whatever pieces the bytes arrive in."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedmatrix import sse


def events(*chunks: bytes) -> list[bytes]:
    decoder = sse.Decoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


STREAM = (
    ': ping\n\ndata: {"a": 1}\n\r\ndata:{"b": "é中\u2028\u2029\u0085"}\r\n\r\nevent: x\nid: 7\ndata: one\ndata:two\n\n'
    "retry: 3\rdata\rdata: \r\rdata: [DONE]\n\n"
).encode()
RIGHT = [b'{"a": 1}', '{"b": "é中\u2028\u2029\u0085"}'.encode(), b"one\ntwo", b"\n", b"[DONE]"]


def test_the_standard_in_one_stream():
    assert events(STREAM) == RIGHT


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_split_gives_the_same_events(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    assert events(*(STREAM[a:b] for a, b in itertools.pairwise(edges))) == RIGHT


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1), max_size=6),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_what_is_sent_is_what_is_read(texts, end):
    sent = "".join(f"data: {text}{end}{end}" for text in texts).encode()
    assert events(*(sent[i : i + 1] for i in range(len(sent)))) == [text.encode() for text in texts]


def test_a_byte_order_mark_opens_the_stream_only():
    assert events(b"\xef\xbb\xbfdata: a\n\n", b"data: \xef\xbb\xbfb\n\n") == [b"a", b"\xef\xbb\xbfb"]


def test_an_unfinished_event_is_no_event():
    assert events(b"data: a\n") == []


def test_an_endless_line_is_refused():
    decoder = sse.Decoder()
    with pytest.raises(sse.StreamError, match="larger than 8 MiB"):
        for _ in range(9):
            decoder.feed(b"x" * 2**20)


def test_an_endless_event_of_many_lines_is_refused():
    decoder = sse.Decoder()
    with pytest.raises(sse.StreamError, match="larger than 8 MiB"):
        for _ in range(9):
            decoder.feed(b"data: " + b"x" * 2**20 + b"\n")


def chat(delta=None, finish=None, **more) -> sse.Event:
    return sse.parse(json.dumps({"choices": [{"delta": delta or {}, "finish_reason": finish}], **more}).encode())


def test_a_role_alone_is_no_token():
    assert not chat({"role": "assistant", "content": ""}).visible


@pytest.mark.parametrize("key", ["content", "reasoning_content", "reasoning"])
def test_text_of_every_kind_is_visible(key):
    assert chat({key: "a"}).visible


def test_tool_calls_are_visible():
    assert chat({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}).visible


def test_usage_beside_choices_or_after_them():
    usage = {"completion_tokens": 5, "prompt_tokens": 7}
    assert chat(finish="length", usage=usage).running == 5
    alone = sse.parse(json.dumps({"choices": [], "usage": usage}).encode())
    assert (alone.running, alone.prompt_tokens) == (5, 7)


def test_absent_usage_is_not_zero():
    for usage in (None, {}, {"completion_tokens": 0, "prompt_tokens": 0}):
        event = chat({"content": "a"}, usage=usage)
        assert (event.running, event.prompt_tokens, event.cached_tokens) == (None, None, None)


def test_cached_tokens_null_is_unknown_and_zero_is_zero():
    assert chat(usage={"prompt_tokens_details": None}).cached_tokens is None
    assert chat(usage={"prompt_tokens_details": {"cached_tokens": 0}}).cached_tokens == 0


def test_llama_cpp_timings_count_tokens_and_prompt():
    timings = {"predicted_n": 3, "prompt_n": 90, "cache_n": 10, "prompt_ms": 4.5}
    event = chat({"content": "a"}, timings=timings)
    assert (event.running, event.prompt_tokens, event.cached_tokens, event.prompt_ms) == (3, 100, 10, 4.5)


@pytest.mark.parametrize("error", [{"message": "pool is full", "code": 500}, "pool is full"])
def test_an_error_object_in_the_stream_fails_with_the_servers_words(error):
    with pytest.raises(sse.StreamError, match="pool is full"):
        sse.parse(json.dumps({"error": error}).encode())


@pytest.mark.parametrize("data", [b"<html>", b"[1]", b"3", b"\xff"])
def test_what_is_no_json_object_is_refused_in_one_line(data):
    with pytest.raises(sse.StreamError) as caught:
        sse.parse(data)
    assert "\n" not in str(caught.value)


def events_of(counts: list, texts: list, odd: list) -> st.SearchStrategy:
    """Events with any of the fields that servers send; in place of each object or list there may be something odd."""

    def thing(**fields) -> st.SearchStrategy:
        whole = st.fixed_dictionaries({}, optional={**fields, "unknown": st.just([{"a": None}])})
        return st.one_of(whole, st.sampled_from([None, *odd]))

    count, text, tools = (
        st.sampled_from(counts),
        st.one_of(st.sampled_from(texts), st.text(max_size=5)),
        [None, [], [{}]],
    )
    delta = thing(content=text, reasoning_content=text, reasoning=text, tool_calls=st.sampled_from(tools + odd))
    choice = thing(text=text, delta=delta, finish_reason=st.sampled_from([None, "length", "stop", *odd]))
    details = thing(cached_tokens=count)
    return thing(
        choices=st.one_of(st.lists(choice, max_size=2), st.sampled_from([None, *odd])),
        usage=thing(prompt_tokens=count, completion_tokens=count, prompt_tokens_details=details),
        timings=thing(predicted_n=count, prompt_n=count, cache_n=count, prompt_ms=count),
        error=st.sampled_from([None, *odd]),
    )


USUAL = events_of([0, 1, 5, None], ["", None], [])
ODD = events_of([None, 0, 3.0, 2.5, True, "7", -1, 2**70], [0, 5, ["a"]], ["odd", 3, [], {}, [1], {"message": "full"}])


def outcome(read, data: bytes) -> sse.Event | str:
    try:
        return read(data)
    except sse.StreamError as error:
        return str(error)


@given(st.one_of(USUAL, ODD), st.booleans())
def test_events_are_read_the_same_fast_and_slowly(event, escaped):
    data = json.dumps(event, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    assert outcome(sse.parse, data) == outcome(sse.parse_odd, data)


@given(st.recursive(st.one_of(st.none(), st.floats(), st.text()), st.lists), st.binary(max_size=20))
def test_what_is_no_event_is_refused_the_same_fast_and_slowly(value, noise):
    for data in (json.dumps(value).encode(), noise):
        assert outcome(sse.parse, data) == outcome(sse.parse_odd, data)


@pytest.mark.parametrize(
    "event",
    [
        {"choices": [{"index": 0, "text": " a", "finish_reason": None}], "usage": {"completion_tokens": 3}},
        {"choices": [{"delta": {"content": "a"}}], "timings": {"predicted_n": 3, "prompt_n": 9, "prompt_ms": 1.5}},
        {"choices": [], "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0}}},
    ],
)
def test_usual_events_take_the_fast_path(event, monkeypatch):
    monkeypatch.setattr(sse, "parse_odd", None)
    sse.parse(json.dumps(event).encode())


@pytest.mark.parametrize("event", [{"choices": ["a"]}, {"choices": 3}, {"usage": [1]}, {"timings": {"prompt_n": None}}])
def test_an_event_of_another_kind_is_refused_in_one_line(event):
    with pytest.raises(sse.StreamError, match="no completion's"):
        sse.parse(json.dumps(event).encode())


def test_an_event_carries_its_text():
    assert chat({"content": 'a"\n\u2028'}).text == 'a"\n\u2028'
    assert chat({"content": "", "reasoning": "b"}).text == "b"
    assert sse.parse(b'{"choices": [{"text": "c"}]}').text == "c"
    assert chat({"tool_calls": [{}]}).text == chat().text == ""


def count(*stream: sse.Event) -> tuple[list[int], str, int | None]:
    counter = sse.Counter()
    return [counter.arrived(event) for event in stream], counter.source, counter.final


def test_five_tokens_in_one_event_with_running_usage():
    one, two = (chat({"content": "abcde"}, usage={"completion_tokens": n}) for n in (5, 10))
    assert count(one, two) == ([5, 5], "usage", None)


def test_usage_only_in_the_last_event_is_the_final_count():
    text = chat({"content": "abcde"})
    last = chat(finish="length", usage={"completion_tokens": 10})
    assert count(text, text, last) == ([1, 1, 0], "reconciled", 10)


def test_usage_in_an_event_of_its_own_at_the_end():
    text, finish = chat({"content": "a"}), chat(finish="length")
    usage = sse.parse(b'{"choices": [], "usage": {"completion_tokens": 2}}')
    assert count(text, text, finish, usage) == ([1, 1, 0, 0], "reconciled", 2)


def test_tokens_without_text_yet_are_counted():
    steps = [chat({"content": text}, usage={"completion_tokens": n}) for n, text in ((1, ""), (2, "é"), (3, ""))]
    assert count(*steps) == ([1, 1, 1], "usage", None)


def test_running_usage_repeated_by_the_last_event_adds_nothing():
    text = chat({"content": "a"}, usage={"completion_tokens": 1})
    last = chat(finish="length", usage={"completion_tokens": 1})
    assert count(text, last) == ([1, 0], "usage", None)


def test_no_usage_at_all_counts_events():
    role, text = chat({"role": "assistant"}), chat({"content": "a"})
    assert count(role, text, text, chat(finish="stop")) == ([0, 1, 1, 0], "events", None)
