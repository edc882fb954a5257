"""HTTP around the schedule."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import re
import ssl
import time
import zlib
from asyncio import StreamReader, StreamWriter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.truth_server.answers import Answer
from tests.truth_server.faults import Faults
from tests.truth_server.schedule import Options, Rank, Sequence
from tests.truth_server.speeds import Speeds

LATE_S = 0.01  # a step that came later than this kept no truth
TEMPLATE_TOKENS = 11  # what a chat template adds to every prompt
_PIECE = re.compile(r"\s?\w{1,5}|\W")


def tokens(text: str) -> list[int]:
    """A tokenizer with some four characters a token, whose slices do not re-encode to themselves."""
    return [3 + zlib.crc32(piece.encode()) % 50_000 for piece in _PIECE.findall(text)]


class Refused(Exception):
    """A request that is answered with this status and message."""

    def __init__(self, status: bytes, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """vLLM's endpoints over one or several ranks."""

    def __init__(self, speeds: Speeds, options: Options) -> None:
        self.options, self.faults = options, Faults()
        self.ranks = [Rank(speeds, options, lambda: self.faults, seed) for seed in range(options.ranks)]
        self.seen: set[bytes] = set()
        self.hits = self.asked = 0
        self.numbers = itertools.count()
        self.head = ""  # of the last completion asked for

    async def connection(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Requests of one connection, until a stream or its end."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
                length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.I)
                body = await reader.readexactly(int(length[1])) if length else b""
                if path in ("/v1/completions", "/v1/chat/completions"):
                    self.head = head.decode()
                    try:
                        await self.complete(body, path.startswith("/v1/chat"), reader, writer)
                        break
                    except Refused as refused:
                        self._reply(writer, {"error": {"message": str(refused)}}, refused.status)
                else:
                    self.answer(method, path, body, writer)
                if self.faults.drops_idle:
                    await asyncio.sleep(0.01)
                    break
        writer.close()

    async def complete(self, body: bytes, chat: bool, reader: StreamReader, writer: StreamWriter) -> None:
        """A streamed completion."""
        received = time.perf_counter()
        asked, prompt, key = _read(body)
        self._refuse(asked, chat, prompt)
        limit = int(asked.get("max_completion_tokens") or asked["max_tokens"])
        count = (prompt if isinstance(prompt, int) else len(tokens(prompt))) + chat * TEMPLATE_TOKENS
        if count + limit > self.options.max_context:
            raise Refused(b"400 Bad Request", f"{count} + {limit} tokens are over the limit")
        cached = count - 1 if self.options.prefix_cache and key in self.seen else 0
        self.seen.add(key)
        self.hits += cached
        each = bool((asked.get("stream_options") or {}).get("continuous_usage_stats"))
        stop_at = self.faults.ignores_ignore_eos or limit
        answer = Answer(writer, self.faults, chat, each, stop_at)
        one = Sequence(next(self.numbers), count, cached, limit, received, answer.send, left=count - cached)
        answer.begin()
        rank = min(self.ranks, key=lambda rank: rank.load)
        rank.add(one)
        gone = asyncio.ensure_future(reader.read(1))  # the client says nothing more: this ends when it hangs up
        ended = asyncio.ensure_future(one.ended.wait())
        await asyncio.wait([ended] if self.faults.lingers else [gone, ended], return_when=asyncio.FIRST_COMPLETED)
        rank.leave(one)
        gone.cancel()

    def _refuse(self, asked: dict[str, Any], chat: bool, prompt: int | str) -> None:
        faults = self.faults
        if faults.echoes:
            raise Refused(b"401 Unauthorized", f"no such key: {_repeated(self.head)}")
        if faults.chat_only and not chat:
            raise Refused(b"404 Not Found", "Not Found")
        self.asked += 1
        if self.asked <= faults.busy_first or 0 <= faults.busy_after < self.asked:
            raise Refused(b"503 Service Unavailable\r\nRetry-After: 1", "too many requests")
        known = [*asked, *(asked.get("stream_options") or {})]
        if faults.wants_max_completion_tokens and "max_tokens" in asked:
            said = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            raise Refused(b"400 Bad Request", "bad request" if faults.mute else said)
        for field in faults.refuses:
            if field in known:
                said = "bad request" if faults.mute else f"Unrecognized request argument supplied: {field}"
                raise Refused(b"400 Bad Request", said)
        if faults.text_only and isinstance(prompt, int):
            raise Refused(b"422 Unprocessable Entity", "bad request" if faults.mute else "prompt: a string is expected")

    def answer(self, method: str, path: str, body: bytes, writer: StreamWriter) -> None:
        """Everything but completions."""
        if path == "/metrics" and self.faults.metrics != "vllm":
            status = {"missing": b"404 Not Found", "502": b"502 Bad Gateway", "html": b"200 OK"}[self.faults.metrics]
            return self._reply(writer, "<html><body>Bad Gateway</body></html>", status)
        if path == "/metrics":
            return self._reply(writer, self.metrics())
        if path == "/tokenize" and not self.faults.no_tokenize:
            asked = json.loads(body)
            told: Any = {"tokens": [1] * bool(asked.get("add_special_tokens")) + tokens(asked["prompt"])}
        elif path == "/v1/models":
            told = {"data": [{"id": name, "max_model_len": self.options.max_context} for name in self.faults.models]}
        elif path == "/version":
            told = {"version": self.faults.version}
        elif path == "/truth":
            told = self.truth(begin=method == "POST")
        elif path == "/faults":
            self.faults, self.asked, told = Faults(**json.loads(body)), 0, {}
        elif path == "/health":
            told = {}
        else:
            return self._reply(writer, {"error": {"message": "Not Found"}}, b"404 Not Found")
        self._reply(writer, told)

    def truth(self, begin: bool) -> dict[str, Any]:
        """Steps that were late, [when, by how many ms], and the first tokens' times since it was last begun."""
        ranks = self.ranks
        firsts = [1000 * first for rank in ranks for first in rank.firsts]
        late = [[at, 1000 * late] for rank in ranks for at, late in rank.late if late > LATE_S]
        told = {"late": late, "ttft_ms": firsts}
        if begin:
            for rank in ranks:
                rank.late, rank.firsts = [], []
        return told | {"inside": sum(rank.load for rank in ranks), "asked_for": self.head.splitlines()}

    def metrics(self) -> str:
        """The counters under vLLM's names, one engine a rank."""
        rows: dict[str, list[float]] = {
            "num_requests_running": [self._running(rank) for rank in self.ranks],
            "num_requests_waiting": [len(rank.waiting) for rank in self.ranks],
            "generation_tokens_total": [rank.generated for rank in self.ranks],
            "prompt_tokens_total": [rank.prompted for rank in self.ranks],
            "num_preemptions_total": [rank.preempted for rank in self.ranks],
            "prefix_cache_hits_total": [self.hits, *[0] * (len(self.ranks) - 1)],
        }
        lines = [f'vllm:{name}{{engine="{i}"}} {value}' for name, row in rows.items() for i, value in enumerate(row)]
        size = f'kv_cache_size_tokens="{self.options.kv_capacity}"'
        lines += [f'vllm:cache_config_info{{engine="{i}",{size}}} 1' for i in range(len(self.ranks))]
        return "\n".join(lines) + "\n"

    def _running(self, rank: Rank) -> int:
        return rank.gauge if self.faults.stale_gauges else rank.load - len(rank.waiting)

    @staticmethod
    def _reply(writer: StreamWriter, told: Any, status: bytes = b"200 OK") -> None:
        body = told.encode() if isinstance(told, str) else json.dumps(told).encode()
        kind = b"text/plain" if isinstance(told, str) else b"application/json"
        writer.write(
            b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (status, kind, len(body)) + body
        )


def _repeated(head: str) -> str:
    """The client's key as servers and proxies repeat it: as it is, for a URL, in Base64, in two parts."""
    key = (re.findall(r"authorization: bearer (\S+)", head, re.I) or [""])[0]
    encoded = base64.b64encode(f"user:{key}".encode()).decode()
    return f"{key}; ?key={quote(key, safe='')}; {encoded}; {key[: len(key) // 2]} {key[len(key) // 2 :]}"


def _read(body: bytes) -> tuple[dict[str, Any], int | str, bytes]:
    """(the body, its prompt as a number of ids or as text, the prompt's bytes).

    Ids are counted, not parsed, since parsing 250,000 would delay the schedule.
    """
    found = re.search(rb'"prompt": ?\[', body)
    if found is None:
        asked = json.loads(body)
        text = asked["prompt"] if "prompt" in asked else "".join(one["content"] for one in asked["messages"])
        return asked, text, text.encode()
    start = found.end()
    end = body.index(b"]", start)
    ids = body[start:end].replace(b" ", b"")
    return json.loads(body[:start] + body[end:]), ids.count(b",") + 1 if ids.strip() else 0, ids


async def serve(host: str, port: int, server: Server, tls: Path | None = None) -> None:
    """Serve until cancelled; https with the certificate and key in the file `tls`."""
    context = None
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls)
    listening = await asyncio.start_server(server.connection, host, port, limit=2**26, backlog=1024, ssl=context)
    async with listening:
        await asyncio.gather(*(rank.run() for rank in server.ranks))
