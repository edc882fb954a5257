"""Bytes → events of a streamed answer: server-sent events as OpenAI-compatible servers use them. Pure."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from speedmatrix import untrusted

MAX_EVENT_BYTES = 8 * 1024 * 1024  # a stream that never ends an event must not eat the memory
MAX_TOKENS = 10**9  # of one stream, as usage may tell; what says more says nothing
DONE = b"[DONE]"
GRACE_S = 1.0  # after a finish reason, for usage and [DONE]: some servers say no [DONE] and never close


class StreamError(Exception):
    """The stream can't be measured; the message is one line with the server's own words."""


class Decoder:
    """Server-sent events from bytes that arrive in any pieces (WHATWG "event stream interpretation").

    Only the data of each event is kept: that is all that an OpenAI-compatible server says. Lines end with
    LF, CRLF or CR; U+2028, U+2029 and U+0085 end none, so everything is done on bytes.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._start = True
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every event that `chunk` completes. StreamError when an event outgrows MAX_EVENT_BYTES."""
        if self._is_one_event(chunk):
            self._start = False
            return [chunk[6:-2]]
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")  # the second half of a CRLF that was split between two reads
            self._after_cr = False
        text = self._rest + chunk
        if b"\r" in text:
            self._after_cr = text.endswith(b"\r")
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = text.split(b"\n")
        events = [data for line in lines if (data := self._line(line)) is not None]
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise StreamError(f"an event of the stream is larger than {MAX_EVENT_BYTES // 2**20} MiB")
        return events

    def _is_one_event(self, chunk: bytes) -> bool:
        """Whether nothing is left over and `chunk` is one line `data: …` and an empty one, as most chunks are."""
        return (
            chunk.find(b"\n") == len(chunk) - 2
            and chunk.startswith(b"data: ")
            and chunk.endswith(b"\n")
            and not (self._rest or self._data or self._after_cr)
            and b"\r" not in chunk
        )

    def _line(self, line: bytes) -> bytes | None:
        if self._start:
            line, self._start = line.removeprefix(b"\xef\xbb\xbf"), False
        if line:
            if line.startswith(b"data:"):
                self._add(line[5:].removeprefix(b" "))
            elif line == b"data":
                self._add(b"")
            return None
        if not self._data:
            return None
        event = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data, self._size = [], 0
        return event

    def _add(self, data: bytes) -> None:
        self._data.append(data)
        self._size += len(data) + 1  # lines without anything in them fill the memory, too


class Event(msgspec.Struct, frozen=True):
    """One event of a completion's stream. Token counts are None where the event does not tell them."""

    visible: bool  # carries text, reasoning or a tool call
    running: int | None  # tokens generated so far, as the event counts them
    prompt_tokens: int | None
    cached_tokens: int | None
    finish: str | None
    prompt_ms: float | None  # the server's own prefill time
    text: str  # the text or reasoning that it carries, '' where it is neither


# The shape of the events that servers do send, so that one costs a microsecond. What has another shape is no error:
# `parse_odd` reads it. Nothing may be null here where null says something else than absence.
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
Told = Count | msgspec.UnsetType
Ms = Annotated[float, msgspec.Meta(ge=0, le=untrusted.MAX_MS)]
UNSET = msgspec.UNSET


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: Told | None = UNSET


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None


class _Timings(msgspec.Struct, gc=False):
    predicted_n: Told = UNSET
    prompt_n: Told = UNSET
    cache_n: Told = UNSET
    prompt_ms: Ms | None = None


class _Shape(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: None = None


_decode = msgspec.json.Decoder(_Shape).decode
_CHOICE, _DELTA, _USAGE, _DETAILS, _TIMINGS = _Choice(), _Delta(), _Usage(), _Details(), _Timings()


def parse(data: bytes) -> Event:
    """What one event says. StreamError for an error object inside the stream and for what is no completion's event."""
    try:
        said = _decode(data)
    except (msgspec.DecodeError, RecursionError):
        return parse_odd(data)
    choice = said.choices[0] if said.choices else _CHOICE
    delta, usage, timings = choice.delta or _DELTA, said.usage or _USAGE, said.timings or _TIMINGS
    text = choice.text or delta.content or delta.reasoning_content or delta.reasoning or ""
    running = usage.completion_tokens if timings.predicted_n is UNSET else timings.predicted_n
    prompt = usage.prompt_tokens or None
    if timings.prompt_n is not UNSET:
        prompt = timings.prompt_n + (timings.cache_n or 0)
    cached = (usage.prompt_tokens_details or _DETAILS).cached_tokens
    if cached is UNSET:
        cached = None if timings.cache_n is UNSET else timings.cache_n
    visible = bool(text or delta.tool_calls)
    return Event(visible, running or None, prompt, cached, choice.finish_reason, timings.prompt_ms, text)


def parse_odd(data: bytes) -> Event:
    """`parse` for events of any shape, slowly."""
    try:
        raw = untrusted.loads(data)
    except ValueError:
        raise StreamError(f"an event of the stream is no JSON: {untrusted.message(data)}") from None
    if not isinstance(raw, dict):
        raise StreamError(f"an event of the stream is no JSON object: {untrusted.message(data)}")
    if raw.get("error"):
        raise StreamError(f"the server ended the stream with an error: {untrusted.message(raw)}")
    try:
        return _odd(raw)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise StreamError(f"an event of the stream is no completion's: {untrusted.message(data)}") from None


def _odd(raw: dict[str, Any]) -> Event:
    choice = (raw.get("choices") or [{}])[0]
    usage = raw.get("usage") or {}
    timings = raw.get("timings") or {}
    running = _count(timings.get("predicted_n", usage.get("completion_tokens")))
    finish = choice.get("finish_reason")
    text, tools = _carried(choice)
    return Event(
        visible=bool(text or tools),
        running=running or None,  # usage of zeros is how some servers say nothing
        prompt_tokens=_prompt(usage, timings),
        cached_tokens=_cached(usage, timings),
        finish=finish if isinstance(finish, str) else untrusted.line(str(finish)) if finish else None,
        prompt_ms=untrusted.ms(timings.get("prompt_ms")),
        text=text if isinstance(text, str) else "",
    )


def _carried(choice: dict[str, Any]) -> tuple[Any, Any]:
    """(text of whatever kind, tool calls)."""
    delta = choice.get("delta") or {}
    texts = (choice.get("text"), *(delta.get(key) for key in ("content", "reasoning_content", "reasoning")))
    return next((text for text in texts if text), ""), delta.get("tool_calls")


def _count(value: Any) -> int | None:
    return untrusted.count(value, MAX_TOKENS)


def _prompt(usage: dict[str, Any], timings: dict[str, Any]) -> int | None:
    if "prompt_n" not in timings:
        return _count(usage.get("prompt_tokens")) or None
    told = _count(timings["prompt_n"])  # llama.cpp tells it from the first event on, its usage only with the last
    if told is None:
        raise ValueError("prompt_n is no count")
    return told + (_count(timings.get("cache_n")) or 0)


def _cached(usage: dict[str, Any], timings: dict[str, Any]) -> int | None:
    details = usage.get("prompt_tokens_details") or {}
    return _count(details.get("cached_tokens", timings.get("cache_n")))


class Counter:
    """Turns a stream's events into arrivals: how many tokens each event brought.

    A count that grows from event to event is running; one that comes only with the last event is the final
    count, by which the arrivals are reconciled afterwards (`final` beside `counted`).
    """

    def __init__(self) -> None:
        self.counted = 0
        self.final: int | None = None
        self.running = False

    def arrived(self, event: Event) -> int:
        """Tokens that came with `event`: 0 for a role, an empty delta, or usage alone."""
        if event.running is None:
            tokens = 1 if event.visible else 0
        elif self.running or (event.finish is None and (event.visible or self.counted == 0)):
            self.running = True
            tokens = max(0, event.running - self.counted)
        else:
            self.final = event.running
            tokens = 1 if event.visible else 0
        self.counted += tokens
        return tokens

    @property
    def source(self) -> str:
        """`usage` (running counts), `reconciled` (weighted by the final usage) or `events` (counted)."""
        if self.running:
            return "usage"
        return "reconciled" if self.final is not None else "events"
