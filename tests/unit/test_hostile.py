"""What a server says can be anything: it is bounded, cleaned or refused in one line, and never a traceback."""

import asyncio
import contextlib
import gzip
import json
import socket
import threading
import time
import tracemalloc

import pytest

from speedmatrix import load, merge, metrics, opener, prompts, servers, serverstate, sizing, sse, store, untrusted
from speedmatrix.arrivals import Stream
from speedmatrix.cells import Capacity
from speedmatrix.config import ConfigError, Server, parse
from speedmatrix.engines import ENGINES, EngineError, answers, base
from tests.unit import samples


@contextlib.contextmanager
def server(answer, head: bytes = b"HTTP/1.1 200 OK\r\n\r\n"):
    """A server that says `head`, then every piece of `answer()`, to whoever connects; its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(head)
            for piece in answer():
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(65536)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def once(body: bytes):
    return lambda: iter([body])


def forever(piece: bytes, pause_s: float = 0.0):
    def pieces():
        while True:
            yield piece
            time.sleep(pause_s)

    return pieces


def engine(url: str, kind: str = "vllm"):
    return ENGINES[kind](Server("s", kind, url, None, None, None, {}, Capacity(), None))


def refused(act, error=EngineError) -> str:
    """The one line with which `act()` is refused."""
    with pytest.raises(error) as caught:
        act()
    line = str(caught.value)
    assert line.isprintable() and len(line) < 700, line
    return line


def test_a_body_without_an_end_is_refused_at_its_bound_and_not_kept(monkeypatch):
    monkeypatch.setattr(answers, "MAX_BODY_BYTES", 2**20)
    with server(forever(b"x" * 65536)) as url:
        tracemalloc.start()
        for act in (engine(url).facts, lambda: engine(url).tokenize("a", True)):
            assert "its answer is larger than 1 MiB" in refused(act)
        assert engine(url).counters() == base.Counters()
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
        tracemalloc.stop()


def test_a_body_that_trickles_ends_with_the_time_limit():
    with server(forever(b"x", 0.05)) as url:
        began = time.monotonic()
        assert "no answer in time" in refused(lambda: engine(url)._call("GET", "/version", timeout_s=0.5))
        assert time.monotonic() - began < 2


def test_a_packed_answer_is_not_unpacked():
    bomb = gzip.compress(b"0" * 10_000_000)
    with server(once(bomb), b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n") as url:
        assert "its answer is packed (gzip) though that was not asked for" in refused(engine(url).facts)
        assert "packed (gzip) though that was not asked for" in stream_failure(url)


HEADS = {
    "a giant header": b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 1_000_000 + b"\r\n\r\n",
    "a giant status line": b"HTTP/1.1 200 " + b"a" * 1_000_000 + b"\r\n\r\n",
    "100,000 headers": b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(100_000)) + b"\r\n",
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_head_that_is_none_is_refused(head):
    with server(once(b""), head) as url:
        refused(engine(url).facts)
        assert not engine(url).healthy()
        stream_failure(url)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_answer_sends_us_elsewhere(status):
    head = b"HTTP/1.1 %d Moved\r\nLocation: http://192.0.2.1/secret\r\nContent-Length: 0\r\n\r\n" % status
    with server(once(b""), head) as url:
        assert "it sends elsewhere; name the address that answers itself in servers.s.url" in refused(engine(url).facts)
        assert f"HTTP {status}: it sends elsewhere (http://192.0.2.1/secret)" in stream_failure(url)


def stream_failure(url: str) -> str:
    """Why a prefill at this server fails."""

    async def measured() -> None:
        async with opener.session({}) as http:
            opened = opener.opener(http, url + "/v1/completions", lambda _: b"{}", lambda: False)
            await load.prefill(opened, 1, timeout_s=20)

    return refused(lambda: asyncio.run(measured()), load.LoadError)


def test_an_error_without_an_end_is_read_to_its_bound():
    with server(forever(b"no! " * 1000), b"HTTP/1.1 500 Oh\r\n\r\n") as url:
        assert stream_failure(url).startswith("HTTP 500: no! no! no!")


def test_an_error_that_trickles_is_waited_for_no_longer_than_its_limit(monkeypatch):
    monkeypatch.setattr(opener, "ERROR_S", 0.3)
    with server(forever(b"no ", 0.05), b"HTTP/1.1 500 Oh\r\n\r\n") as url:
        began = time.monotonic()
        assert stream_failure(url).startswith("HTTP 500: no no")
        assert time.monotonic() - began < 3


LINES = {"a line": b"data: " + b"x" * 65536, "empty data lines": b"data:\n" * 10_000, "bare lines": b"data\n" * 10_000}
LINES |= {"comments without an end": b":" + b"c" * 65536}


@pytest.mark.parametrize("piece", LINES.values(), ids=LINES)
def test_a_stream_that_never_ends_its_event_fails_and_eats_no_memory(piece, monkeypatch):
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 2**20)
    with server(forever(piece)) as url:
        tracemalloc.start()
        assert "an event of the stream is larger than 1 MiB" in stream_failure(url)
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
        tracemalloc.stop()


def test_a_prefill_that_never_ends_fails():
    piece = b'data: {"choices": [{"text": "a"}]}\n\n'
    with server(forever(piece * 50)) as url:
        assert "the server did not end after the one token that was asked for" in stream_failure(url)


DEEP = b"[" * 200_000
OBJECTS = {
    "deep": b'{"data": ' + DEEP,
    "closed deep": b'{"data": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "no UTF-8": b'{"data": "\xff\xfe"',
    "a list": b"[1]",
    "a text": b'"data"',
    "null": b"null",
    "entries of any kind": b'{"data": [1, null, "a", {"id": 3}, {"id": null}]}',
    "no list": b'{"data": {"id": "m"}}',
    "a giant number": b'{"data": ' + b"9" * 100_000 + b"}",
    "escape sequences": b'{"data": [{"id": "\\u001b[2J\\u202e\\ud800"}, {"id": "b"}]}',
    "a giant name": b'{"data": [{"id": "' + b"m" * 100_000 + b'"}]}',
}


@pytest.mark.parametrize("body", OBJECTS.values(), ids=OBJECTS)
@pytest.mark.parametrize("kind", ENGINES)
def test_an_answer_of_any_shape_is_one_line(kind, body):
    with server(once(body)) as url:
        refused(engine(url, kind).model)
        refused(lambda: servers.read_facts(engine(url, kind)), servers.SweepError)
        refused(lambda: engine(url, kind).tokenize("a", True))
        assert engine(url, kind).requests_inside() in (None, 0)
        engine(url, kind).answers("/props")


@pytest.mark.parametrize("ids", ["[1e400]", "[-1]", '["a"]', "[null]", "[true]", "[1.5]", "7", "[" + "9" * 400 + "]"])
def test_token_ids_are_token_ids(ids):
    with server(once(b'{"tokens": %s}' % ids.encode())) as url:
        assert "token ids" in refused(lambda: engine(url, "llama.cpp").tokenize("a", True))


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "1e300", "9" * 400, "0x10", ""])
def test_a_metric_beyond_reason_is_as_good_as_silence(value):
    rows = f"vllm:num_requests_running {value}\nvllm:num_requests_waiting 2\nvllm:generation_tokens_total {value}\n"
    with server(once(rows.encode())) as url:
        counters = engine(url).counters()
        assert (counters.running, counters.generated) == (None, None)
        assert engine(url).requests_inside() is None


@pytest.mark.parametrize("noise", [b"\xff\xfe\x00", b'a{b="', b"a{} } 1", b"# TYPE a b c d\na 1 2 3 4", b"{" * 9999])
def test_metrics_that_are_none_are_none(noise):
    with server(once(noise)) as url:
        assert engine(url).counters() == base.Counters()


def test_facts_are_lines_and_counts():
    made = engine("http://127.0.0.1:9")
    served = {
        "version": "1\n\x1b[31m2\ud800",
        "parameters": 10**400,
        "size_bytes": -1,
        "build": ["a"],
        "commit": "x" * 999,
    }
    facts = made.with_config(base.Facts(served, Capacity(10**400, 0, -3)))
    assert facts.served == {
        "version": "1 [31m2",
        "parameters": None,
        "size_bytes": None,
        "build": None,
        "commit": "x" * 300,
    }
    assert facts.capacity == Capacity(None, None, None)


@pytest.mark.parametrize("number", ["1e300", "-5", "1e999", "NaN", "-Infinity", "9" * 400, "2.5", '"7"', "true", "[]"])
def test_usage_beyond_reason_is_as_good_as_silence(number):
    usage = f'"completion_tokens": {number}, "prompt_tokens": {number}'
    usage += f', "prompt_tokens_details": {{"cached_tokens": {number}}}'
    event = sse.parse(f'{{"choices": [{{"text": "a"}}], "usage": {{{usage}}}}}'.encode())
    assert (event.running, event.prompt_tokens, event.cached_tokens, event.text) == (None, None, None, "a")
    counter = sse.Counter()
    assert (counter.arrived(event), counter.source) == (1, "events")
    timings = sse.parse(f'{{"choices": [], "timings": {{"prompt_ms": {number}, "predicted_n": {number}}}}}'.encode())
    assert (timings.prompt_ms, timings.running) == (2.5 if number == "2.5" else None, None)


def test_a_count_of_reason_is_taken_fast_and_slowly():
    for number in ("1000000000", "7.0"):
        for read in (sse.parse, sse.parse_odd):
            event = read(b'{"choices": [], "usage": {"completion_tokens": %s}}' % number.encode())
            assert event.running == float(number)


@pytest.mark.parametrize(
    "data",
    [
        b'{"choices": ' + DEEP,
        b'{"choices": [], "unknown": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"error": ' + b'{"a": ' * 20_000 + b"1" + b"}" * 20_000 + b"}",
        b'{"error": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"error": "\\u001b]0;owned\\u0007\\n\\ud800"}',
        b'{"choices": [{"finish_reason": ' + b"[" * 900 + b"]" * 900 + b"}]}" + b"x",
    ],
)
def test_an_event_that_is_nested_or_full_of_signs_is_refused_in_one_line(data):
    refused(lambda: sse.parse(data), sse.StreamError)


def test_text_that_is_no_utf_8_is_measured_all_the_same():
    assert sse.parse(b'{"choices": [{"text": "a\xff"}]}').text == "a\ufffd"


def test_more_cached_than_the_prompt_had_is_unknown():
    told = [Stream(0, 0, 0, [1], [1], prompt_tokens=100, cached_tokens=cached) for cached in (100, 101)]
    assert [metrics.cached_share([one]) for one in told] == [1.0, None]


@pytest.mark.parametrize("tokens", [[], [1]])
def test_a_tokenizer_that_gives_no_tokens_ends(tokens):
    refused(lambda: prompts.build(10_000, 0, "0" * 16, lambda text, special: tokens), sizing.SizeError)


def test_each_arrivals_text_is_kept_only_in_part():
    stream = Stream(0, 0, texts=[])
    data = b'{"choices": [{"text": "%s"}]}' % (b"a" * 1_000_000)
    load._take(stream, [data], sse.Counter(), 1)
    assert stream.texts == ["a" * load.TEXT_CHARACTERS]


def test_a_line_is_printable_and_short():
    assert untrusted.line("a\n\tb\x00\x1b[0m\u2028\u202ec\ud800 é中") == "a b [0m c é中"
    assert untrusted.line("x" * 10**6) == "x" * 300


def test_half_a_surrogate_pair_can_be_written(tmp_path):
    store.write_json(tmp_path / "a.json", {"a": "\ud800é"})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"a": "\ud800é"}


FORMULAS = [
    "=1+1",
    "+1",
    "-1",
    "@x",
    "\t=1",
    "\r=1",
    "\n=1",
    " =1",
    "＝1",
    "a;=cmd",
    "a\t=cmd",
    "a; -1",
    "x\x00",
    "\x85=1",
]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_of_the_table_begins_a_formula_wherever_it_is_parted(text):
    cell = samples.cell(status="failed", reason=text, figures={"server_diff_pct": -2.5})
    row = merge.csv_text(merge.table([cell])).splitlines()[1]
    parts = [part.strip().strip('"').strip() for separator in ",;\t" for part in row.split(separator)]
    numbers = ["-2.5"]
    assert [part for part in parts if part.startswith(tuple("=+-@＝＋－＠")) and part not in numbers] == []
    assert row.isprintable() and "-2.5" in row.split(",")


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "..", ".", "a\\b", "a\n", "a b", "a;b", "$(x)", "a*", "", "é", "a" * 65, "-a"]
)
def test_a_servers_name_is_no_path_and_no_command(name):
    with pytest.raises(ConfigError, match="servers"):
        parse({"servers": {name: {"engine": "vllm", "url": "http://127.0.0.1:9"}}})


@pytest.mark.parametrize("value", ["../../x", "a/b", "$(reboot)", "a\nb", "..", "*"])
def test_a_variants_value_is_no_path_in_its_servers_name(value):
    entry = {"engine": "vllm", "url": "http://127.0.0.1:9", "launch": {"command": ["run", "{kind}"]}}
    made = parse({"servers": {"s": entry | {"variants": {"kind": [value]}}}})
    (name,) = made.servers
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") and not name.startswith((".", "-"))


@pytest.mark.parametrize(
    "changes",
    [{"url": "http://127.0.0.1:9\n"}, {"api_key_env": "KEY\n"}, {"launch": {"command": "x", "env": {"A\n": "b"}}}],
)
def test_no_text_ends_with_a_line_of_its_own(changes):
    with pytest.raises(ConfigError):
        parse({"servers": {"s": {"engine": "vllm", "url": "http://127.0.0.1:9"} | changes}})


def test_a_size_that_ends_with_a_line_is_refused():
    with pytest.raises(ConfigError, match="is no size"):
        parse({"servers": {"s": {"engine": "vllm", "url": "http://h"}}, "matrix": {"prefill": {"contexts": ["8K\n"]}}})


def test_a_log_that_moves_the_cursor_is_quoted_in_plain_letters(tmp_path):
    (tmp_path / "a.log").write_bytes(b"first\n\x1b[2J\x07out of memory\xff\r\n\x1b\n\n")
    assert serverstate.log_tail(str(tmp_path / "a.log"), 1) == ["[2J out of memory\ufffd"]


FINISHED = b'data: {"choices": [{"text": "a", "finish_reason": "length"}], "usage": {"prompt_tokens": 7}}\n\n'


@pytest.mark.parametrize("goes_on", [forever(b": keep-alive\n\n", 0.05), forever(b"", 0.05)])
def test_a_small_request_ends_with_its_finish_reason_whatever_the_connection_does(goes_on, monkeypatch):
    monkeypatch.setattr(sse, "GRACE_S", 0.3)

    def answer():
        yield FINISHED
        yield from goes_on()

    with server(answer) as url:
        began = time.monotonic()
        made = engine(url, "openai")
        made._model = "m"
        assert made.prompt_tokens("a", {}) == 7
        assert time.monotonic() - began < 2


def test_a_small_request_whose_first_token_is_all_that_comes_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(answers, "REST_S", 0.3)

    def answer():
        yield b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n'
        yield from forever(b": keep-alive\n\n", 0.05)()

    with server(answer) as url:
        began = time.monotonic()
        made = engine(url, "openai")
        made._model = "m"
        made.prompt_tokens("a", {})
        assert time.monotonic() - began < 2


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("kind", ["openai", "vllm"])
def test_a_wrong_key_is_said_at_once_and_not_taken_for_a_server_that_is_down(status, kind):
    head = b"HTTP/1.1 %d No\r\nContent-Length: 12\r\n\r\n" % status
    with server(once(b"who are you?"), head) as url:
        said = refused(lambda: servers.bring_up(engine(url, kind).server), servers.SweepError)
    assert f"answered {status} (who are you?)" in said and "servers.s.api_key_env" in said


def test_a_file_of_certificates_that_is_none_names_its_key(tmp_path):
    def config(path):
        return {"servers": {"s": {"engine": "openai", "url": "https://127.0.0.1:9", "verify_tls": str(path)}}}

    (tmp_path / "no.pem").write_text("nothing")
    for name, why in (("no.pem", "holds no certificates"), ("missing.pem", "can't be read")):
        said = refused(lambda name=name: parse(config(tmp_path / name)), ConfigError)
        assert "servers.s.verify_tls" in said and why in said


ODD_GAUGES = once(b"HTTP/1.1 200 OK\r\n\r\nvllm:num_requests_running NaN\nvllm:num_requests_waiting NaN\n")


def test_a_gauge_that_is_no_number_is_not_told():
    with server(ODD_GAUGES, b"") as url:
        assert engine(url).requests_inside() is None


@pytest.mark.parametrize("body", [b'{"data": ["a"]}', b'{"data": [["a"]]}', b'[{"id": "a"}]', b'{"data": null}'])
def test_models_of_another_shape_are_refused_in_one_line(body):
    with server(once(body)) as url:
        refused(engine(url, "openai").model)


def test_slots_that_are_an_object_tell_nothing():
    with server(once(b'{"error": "x"}')) as url:
        assert engine(url, "llama.cpp").requests_inside() is None


def test_counts_as_text_are_no_counts():
    event = sse.parse(b'{"choices": [{"text": "a"}], "usage": {"prompt_tokens": "7", "completion_tokens": "1"}}')
    assert (event.prompt_tokens, event.running, event.visible) == (None, None, True)
