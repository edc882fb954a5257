"""A server that is faster than any engine: `python -m bench.token_source --port N`. For measuring the measuring client.

All streams step together on an absolute schedule; a step is one `send` of bytes rendered before, so that one core
gives more than 100,000 tokens a second with the events that vLLM sends. POST /speed {"step_ms": …} sets the step, GET
/truth tells how late the worst step was and each stream's time from its request's last byte to its first token.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Any

MOST_TOKENS = 100_000
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def rendered(number: int, usage: bool, finish: str | None = None) -> bytes:
    """Token `number`'s event as vLLM words it, as one chunk of the answer."""
    word = "".join(random.Random(number).choices(_LETTERS, k=4))
    choice = {"index": 0, "text": f" {word}", "logprobs": None, "finish_reason": finish, "stop_reason": None}
    told = {"prompt_tokens": 16, "total_tokens": 16 + number, "completion_tokens": number}
    return _chunk({"choices": [choice]} | ({"usage": told} if usage else {}))


def ending(number: int) -> bytes:
    """What follows the last of `number` tokens: usage in an event of its own, and the answer's end."""
    told = {"prompt_tokens": 16, "total_tokens": 16 + number, "completion_tokens": number}
    done = b"data: [DONE]\n\n"
    return _chunk({"choices": [], "usage": told}) + b"%x\r\n%s\r\n0\r\n\r\n" % (len(done), done)


def _chunk(event: dict[str, Any]) -> bytes:
    head = {"id": "cmpl-5f3a1c2b9d8e4f60a7b1c2d3", "object": "text_completion", "created": 1764547200, "model": "truth"}
    data = b"data: " + json.dumps(head | event).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


@dataclass
class Connection:
    """One client connection; `sent` of `limit` tokens of its stream, `pending` bytes that its socket did not take."""

    socket: socket.socket
    read: bytes = b""
    asked_at: float | None = None
    sent: int = 0
    limit: int = 0
    usage: bool = False
    pending: bytes = b""


@dataclass
class Source:
    """The schedule, one thread."""

    port: int
    step_s: float = 0.01
    late_max_s: float = 0.0
    firsts_s: list[float] = field(default_factory=list)
    streams: list[Connection] = field(default_factory=list)
    sent: int = 0

    def __post_init__(self) -> None:
        self.events = [[rendered(number, usage) for number in range(MOST_TOKENS)] for usage in (False, True)]
        self.selector = selectors.DefaultSelector()
        self.listener = socket.create_server(("127.0.0.1", self.port), backlog=1024)
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until killed."""
        at = time.perf_counter()
        while True:
            now = time.perf_counter()
            if not self.streams:
                at = now
            elif now >= at + self.step_s:
                at += self.step_s
                self._step()
                self.late_max_s = max(self.late_max_s, time.perf_counter() - at)
                continue
            self._poll(max(0.0, at + self.step_s - now - 0.0005) if self.streams else None)

    def _step(self) -> None:
        """One token to every stream."""
        over = False
        for one in self.streams:
            one.sent += 1
            data = self.events[one.usage][one.sent % MOST_TOKENS]
            if one.sent >= one.limit:
                data, over = rendered(one.sent, one.usage, "length") + ending(one.sent), True
            if one.pending:
                data = one.pending + data
            try:
                taken = one.socket.send(data)
                one.pending = data[taken:] if taken < len(data) else b""
            except BlockingIOError:
                one.pending = data
            except OSError:
                one.sent, over = one.limit, True
            if one.sent == 1:
                self.firsts_s.append(time.perf_counter() - (one.asked_at or 0))
        self.sent += len(self.streams)
        if over:
            self.streams = [one for one in self.streams if one.sent < one.limit]

    def _poll(self, timeout_s: float | None) -> None:
        for key, _ in self.selector.select(timeout_s):
            if key.fileobj is self.listener:
                accepted, _ = self.listener.accept()
                accepted.setblocking(False)
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.selector.register(accepted, selectors.EVENT_READ, Connection(accepted))
            else:
                self._read(key.data)

    def _read(self, one: Connection) -> None:
        try:
            received = one.socket.recv(2**16)
        except OSError:
            received = b""
        if not received:
            self.selector.unregister(one.socket)
            one.socket.close()
            self.streams = [other for other in self.streams if other is not one]
            return
        one.read += received
        head, found, body = one.read.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.I)
        if found and len(body) >= (int(length[1]) if length else 0):
            one.read = b""
            method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
            self._answer(one, method, path, body)

    def _answer(self, one: Connection, method: str, path: str, body: bytes) -> None:
        if path == "/v1/completions":
            asked = json.loads(body)
            one.limit = asked.get("max_tokens") or asked["max_completion_tokens"]
            one.usage = bool((asked.get("stream_options") or {}).get("continuous_usage_stats"))
            one.socket.send(_HEAD)
            if one.limit <= 2:  # a small request that is not measured: answered at once
                one.socket.send(rendered(one.limit, one.usage, "length") + ending(one.limit))
                return
            one.asked_at, one.sent = time.perf_counter(), 0
            self.streams.append(one)
            return
        told: Any = {}
        if path == "/tokenize":
            told = {"tokens": [3 + byte for byte in json.loads(body)["prompt"].encode()]}
        elif path == "/v1/models":
            told = {"data": [{"id": "truth", "max_model_len": 10**6}]}
        elif path == "/version":
            told = {"version": "0"}
        elif path == "/metrics":
            told = f"vllm:num_requests_running {len(self.streams)}\nvllm:num_requests_waiting 0\n"
            told += f"vllm:generation_tokens_total {self.sent}\n"
        elif path == "/truth":
            told = {"late_max_ms": 1000 * self.late_max_s, "ttft_ms": [1000 * first for first in self.firsts_s]}
        elif path == "/speed":
            self.step_s, self.late_max_s, self.firsts_s = json.loads(body)["step_ms"] / 1000, 0.0, []
        text = told.encode() if isinstance(told, str) else json.dumps(told).encode()
        with contextlib.suppress(OSError):
            one.socket.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    Source(parser.parse_args().port).run()
