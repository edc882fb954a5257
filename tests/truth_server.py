"""A server whose speed is known: vLLM's interface over a programmed schedule, so that a measured figure has a truth.

All running sequences step together. A prompt is prefilled in chunks of 2,048 tokens, prompts one after another, and a
step during which one is being prefilled takes as long as its chunk. The schedule is absolute: a step that is sent late
does not delay the next, and GET /truth tells by how much the worst was late since POST /truth.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import contextlib
import csv
import json
import math
import random
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

CHUNK_TOKENS = 2048
Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
SPIN_S = 0.0015


@dataclass(frozen=True)
class Speeds:
    """Programmed speeds: prefill seconds by context, step seconds by (context, batch); all divided by `speedup`."""

    prefill_s: dict[int, float]
    step_s: dict[int, dict[int, float]]
    speedup: float = 1.0

    def chunk(self, context: int, tokens: int) -> float:
        """Seconds to prefill `tokens` tokens of a prompt of `context`: its share of the whole prompt's time."""
        known = sorted(self.prefill_s)
        nearest = min(known, key=lambda other: abs(math.log(other / context)))
        return self.prefill_s[nearest] / nearest * tokens / self.speedup

    def step(self, context: int, batch: int) -> float:
        """Seconds of a decode step: exact where the table has it, linear in between, the edge's beyond."""
        rows = self.step_s[min(self.step_s, key=lambda other: abs(math.log(other / context)))]
        sizes = sorted(rows)
        if batch in rows:
            seconds = rows[batch]
        elif batch > sizes[-1]:
            seconds = rows[sizes[-1]] * batch / sizes[-1]
        else:
            above = bisect.bisect(sizes, batch)
            low, high = sizes[max(0, above - 1)], sizes[above]
            share = (batch - low) / (high - low) if high != low else 0
            seconds = rows[low] + share * (rows[high] - rows[low])
        return seconds / self.speedup


def _tokens(text: str) -> int:
    return int(text[:-1]) * 1024 if text.endswith("K") else int(text)


def _number(text: str) -> float:
    plain = text.replace(",", "").removesuffix(" ms")
    return float(plain[:-1]) * 1000 if plain.endswith("K") else float(plain)


def from_table(path: Path, speedup: float) -> Speeds:
    """Speeds of a published table: prefill seconds = its TTFT, step seconds = concurrency / total tok/s."""
    prefill: dict[int, float] = {}
    steps: dict[int, dict[int, float]] = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            context, lanes = _tokens(row["context"]), int(row["requests_at_once"])
            if row["phase"] == "Prefill":
                prefill[context] = _number(row["ttft"]) / 1000
            elif row["total_tok_s"]:
                steps.setdefault(context, {})[lanes] = lanes / _number(row["total_tok_s"])
    return Speeds(prefill, steps, speedup)


@dataclass
class Sequence:
    """One request inside the server."""

    prompt: int
    cached: int
    limit: int
    usage_each: bool
    writer: asyncio.StreamWriter
    received: float
    left: int = 0  # prompt tokens still to prefill
    done: int = 0  # tokens generated
    held: int = 0  # tokens generated and not yet sent
    first: float | None = None  # scheduled time of the first token
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Options:
    """What else is programmed."""

    kv_capacity: int = 900_000
    max_context: int = 262_144
    max_running: int = 10_000
    tokens_per_event: int = 1
    shuffle: bool = False
    prefix_cache: bool = False
    silent_usage: bool = False  # prompt_tokens_details: null, as vLLM has it by default


class Engine:
    """The schedule: queue, prefill, steps."""

    def __init__(self, speeds: Speeds, options: Options) -> None:
        self.speeds, self.options = speeds, options
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.arrived = asyncio.Event()
        self.generated = self.prompted = self.hits = 0
        self.late_max = 0.0
        self.firsts: list[float] = []
        self.seen: set[bytes] = set()
        self.random = random.Random(0)

    def used(self) -> int:
        return sum(one.prompt + one.limit for one in self.running)

    def admit(self) -> None:
        """Start waiting requests while there is room."""
        while self.waiting and len(self.running) < self.options.max_running:
            following = self.waiting[0]
            if self.used() + following.prompt + following.limit > self.options.kv_capacity:
                return
            self.running.append(self.waiting.popleft())

    def plan(self, now: float) -> tuple[float, Sequence | None]:
        """(seconds of the next step, the sequence whose chunk it holds)."""
        prefilling = next((one for one in self.running if one.left > 0), None)
        decoding = [one for one in self.running if one.left == 0]
        if prefilling is not None:
            return self.speeds.chunk(prefilling.prompt, min(CHUNK_TOKENS, prefilling.left)), prefilling
        context = max(one.prompt for one in decoding)
        return self.speeds.step(context, len(decoding)), None

    async def run(self) -> None:
        at = time.perf_counter()
        while True:
            self.running = [one for one in self.running if not one.ended.is_set()]
            self.admit()
            if not self.running:
                self.arrived.clear()
                await self.arrived.wait()
                at = time.perf_counter()
                continue
            seconds, prefilling = self.plan(at)
            stepping = [one for one in self.running if one.left == 0]
            at += seconds
            await self._until(at)
            self.late_max = max(self.late_max, time.perf_counter() - at)
            self._advance(stepping, prefilling, at)

    def _advance(self, stepping: list[Sequence], prefilling: Sequence | None, at: float) -> None:
        if prefilling is not None:
            chunk = min(CHUNK_TOKENS, prefilling.left)
            prefilling.left -= chunk
            self.prompted += chunk
            if prefilling.left == 0:  # the chunk that ends a prompt gives its first token
                prefilling.first = at
                self.firsts.append(at - prefilling.received)
                stepping = [*stepping, prefilling]
        if self.options.shuffle:
            self.random.shuffle(stepping)
        for one in stepping:
            self._give(one)

    async def _until(self, at: float) -> None:
        while (left := at - time.perf_counter()) > 0:
            await asyncio.sleep(left - SPIN_S if left > SPIN_S else 0)

    def _give(self, one: Sequence) -> None:
        if one.ended.is_set():
            return
        one.done += 1
        one.held += 1
        self.generated += 1
        last = one.done >= one.limit
        if one.held >= self.options.tokens_per_event or last or one.done == 1:
            self._send(one, last)
            one.held = 0

    def _send(self, one: Sequence, last: bool) -> None:
        text = "word " * one.held
        usage = {
            "prompt_tokens": one.prompt,
            "completion_tokens": one.done,
            "prompt_tokens_details": None if self.options.silent_usage else {"cached_tokens": one.cached},
        }
        event: dict[str, object] = {
            "choices": [{"index": 0, "text": text, "finish_reason": "length" if last else None}]
        }
        if one.usage_each or last:
            event["usage"] = usage
        data = b"data: " + json.dumps(event).encode() + b"\n\n" + (b"data: [DONE]\n\n" if last else b"")
        try:
            one.writer.write(b"%x\r\n%s\r\n" % (len(data), data) + (b"0\r\n\r\n" if last else b""))
        except (ConnectionError, RuntimeError):
            last = True
        if last:
            one.ended.set()


class Server:
    """HTTP around the engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
                length = 0
                for line in head.split(b"\r\n")[1:]:
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                body = await reader.readexactly(length) if length else b""
                if path == "/v1/completions":
                    await self.complete(body, reader, writer)
                    break
                self.answer(method, path, body, writer)
        writer.close()

    async def complete(self, body: bytes, reader: Reader, writer: Writer) -> None:
        """A streamed completion; ids are counted, not parsed, since parsing 250,000 would delay the schedule."""
        received = time.perf_counter()
        start = body.index(b'"prompt":[') + 10
        end = body.index(b"]", start)
        prompt = body.count(b",", start, end) + 1
        rest = json.loads(body[:start] + body[end:])
        engine = self.engine
        limit = int(rest["max_tokens"])
        if prompt + limit > engine.options.max_context:
            error = {"error": {"message": f"{prompt} + {limit} tokens are over the limit", "code": 400}}
            return self._reply(writer, json.dumps(error).encode(), status=b"400 Bad Request")
        known = body[start:end]
        cached = prompt - 1 if engine.options.prefix_cache and known in engine.seen else 0
        if engine.options.prefix_cache:
            engine.seen.add(known)
            engine.hits += cached
        each = bool((rest.get("stream_options") or {}).get("continuous_usage_stats"))
        one = Sequence(prompt, cached, limit, each, writer, received, left=prompt - cached)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        engine.waiting.append(one)
        engine.arrived.set()
        gone = asyncio.ensure_future(reader.read(1))  # the client says nothing more: this ends when it hangs up
        ended = asyncio.ensure_future(one.ended.wait())
        await asyncio.wait([gone, ended], return_when=asyncio.FIRST_COMPLETED)
        one.ended.set()
        with contextlib.suppress(ValueError):
            engine.waiting.remove(one)
        gone.cancel()

    def answer(self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        engine = self.engine
        if path == "/metrics":
            return self._reply(writer, self.metrics().encode(), b"text/plain")
        if path == "/tokenize":
            asked = json.loads(body)
            ids = [1] if asked.get("add_special_tokens") else []
            told: dict[str, object] = {"tokens": ids + [3 + byte for byte in asked["prompt"].encode()]}
        elif path == "/v1/models":
            told = {"data": [{"id": "truth", "max_model_len": engine.options.max_context}]}
        elif path == "/version":
            told = {"version": "0.32.0+g0123456789"}
        elif path == "/truth":
            told = {"late_max_ms": engine.late_max * 1000, "ttft_ms": [1000 * first for first in engine.firsts]}
            if method == "POST":
                engine.late_max, engine.firsts = 0.0, []
        else:
            told = {}
        self._reply(writer, json.dumps(told).encode())

    def metrics(self) -> str:
        engine = self.engine
        running = [one for one in engine.running if not one.ended.is_set()]
        return (
            f'vllm:num_requests_running{{engine="0"}} {len(running)}\n'
            f'vllm:num_requests_waiting{{engine="0"}} {len(engine.waiting)}\n'
            "# TYPE vllm:generation_tokens counter\n"
            f'vllm:generation_tokens_total{{engine="0"}} {engine.generated}\n'
            f'vllm:prefix_cache_hits_total{{engine="0"}} {engine.hits}\n'
            "# TYPE vllm:prompt_tokens counter\n"
            f'vllm:prompt_tokens_total{{engine="0"}} {engine.prompted}\n'
            f'vllm:cache_config_info{{engine="0",kv_cache_size_tokens="{engine.options.kv_capacity}"}} 1\n'
        )

    @staticmethod
    def _reply(
        writer: asyncio.StreamWriter, body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK"
    ) -> None:
        head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (status, kind, len(body))
        writer.write(head + body)


async def serve(port: int, engine: Engine) -> None:
    """Serve until cancelled."""
    server = await asyncio.start_server(Server(engine).connection, "127.0.0.1", port, limit=2**26)
    async with server:
        await engine.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--speedup", type=float, default=1.0)
    parser.add_argument("--kv-capacity", type=int, default=900_000)
    parser.add_argument("--max-context", type=int, default=262_144)
    parser.add_argument("--max-running", type=int, default=10_000)
    parser.add_argument("--tokens-per-event", type=int, default=1)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--prefix-cache", action="store_true")
    parser.add_argument("--silent-usage", action="store_true")
    given = vars(parser.parse_args())
    port, speeds = given.pop("port"), from_table(given.pop("table"), given.pop("speedup"))
    asyncio.run(serve(port, Engine(speeds, Options(**given))))
