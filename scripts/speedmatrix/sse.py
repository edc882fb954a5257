"""Bytes → events of a streamed answer: server-sent events as OpenAI-compatible servers use them. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

MAX_EVENT_BYTES = 8 * 1024 * 1024  # a stream that never ends an event must not eat the memory
DONE = b"[DONE]"


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
        self._size += len(data)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a completion's stream. Token counts are None where the event does not tell them."""

    visible: bool  # carries text, reasoning or a tool call
    text: str  # what a reader would see of it
    running: int | None  # tokens generated so far, as the event counts them
    prompt_tokens: int | None
    cached_tokens: int | None
    finish: str | None
    prompt_ms: float | None  # the server's own prefill time


def parse(data: bytes) -> Event:
    """What one event says. StreamError for an error object inside the stream and for what is no JSON object."""
    try:
        raw = json.loads(data.decode())  # from bytes, json would first guess at the encoding
    except ValueError:
        raise StreamError(f"an event of the stream is no JSON: {_shown(data)}") from None
    if not isinstance(raw, dict):
        raise StreamError(f"an event of the stream is no JSON object: {_shown(data)}")
    if raw.get("error"):
        raise StreamError(f"the server ended the stream with an error: {error_message(raw)}")
    choices = raw.get("choices") or [{}]
    usage = raw.get("usage") or {}
    timings = raw.get("timings") or {}
    finish = choices[0].get("finish_reason")
    running = timings.get("predicted_n", usage.get("completion_tokens"))
    text = _text(choices[0])
    return Event(
        visible=bool(text) or bool((choices[0].get("delta") or {}).get("tool_calls")),
        text=text,
        running=running or None,  # usage of zeros is how some servers say nothing
        prompt_tokens=_prompt(usage, timings),
        cached_tokens=_cached(usage, timings),
        finish=finish,
        prompt_ms=timings.get("prompt_ms"),
    )


def _text(choice: dict[str, Any]) -> str:
    if choice.get("text"):
        return str(choice["text"])
    delta = choice.get("delta") or {}
    return "".join(str(delta[key]) for key in ("reasoning_content", "reasoning", "content") if delta.get(key))


def _prompt(usage: dict[str, Any], timings: dict[str, Any]) -> int | None:
    if "prompt_n" in timings:  # llama.cpp tells it from the first event on, its usage only with the last
        return int(timings["prompt_n"]) + int(timings.get("cache_n", 0))
    return usage.get("prompt_tokens") or None


def _cached(usage: dict[str, Any], timings: dict[str, Any]) -> int | None:
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens", timings.get("cache_n"))
    return cached if isinstance(cached, int) else None


def error_message(raw: Any) -> str:
    """The server's message in an error object, in one line of at most 300 characters."""
    error = raw.get("error", raw) if isinstance(raw, dict) else raw
    message = error.get("message", error) if isinstance(error, dict) else error
    return _shown(str(message))


def _shown(text: str | bytes) -> str:
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return " ".join(words.split())[:300]


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
