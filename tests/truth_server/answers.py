"""A request's answer: its events as vLLM words them, and what the faults make of them."""

from __future__ import annotations

import json
from asyncio import StreamWriter
from dataclasses import dataclass, field
from typing import Any

from tests.truth_server.faults import Faults
from tests.truth_server.schedule import Sequence

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WORDS = [first + last for first in ("al", "be", "cor", "dun", "el", "far", "gim") for last in ("a", "id", "os", "um")]


@dataclass
class Answer:
    """Writes one stream. `running`: whether usage was asked for on every event."""

    writer: StreamWriter
    faults: Faults
    chat: bool
    running: bool
    stop_at: int  # the token after which it ends by itself; the limit where it goes on
    lump: list[bytes] = field(default_factory=list)

    def begin(self) -> None:
        """The head, and in a chat the event that carries only a role."""
        self.writer.write(HEAD)
        if self.chat:
            self._write(self._event({"delta": {"role": "assistant", "content": ""}, "finish_reason": None}), False)

    def send(self, one: Sequence, last: bool) -> None:
        """The tokens that `one` holds, as one event, or what goes wrong at this place."""
        faults = self.faults
        if 0 <= faults.stall_after < one.done:
            return
        if 0 <= faults.cut_after < one.done:
            self.writer.transport.abort()
            return one.ended.set()
        if 0 <= faults.error_after < one.done:
            self._write(self._event({}, error={"message": "the engine broke", "code": 500}), True)
            return one.ended.set()
        stopped = one.done >= self.stop_at
        finish = "stop" if stopped and not last else "length" if last else None
        event = self._event({**self._text(one), "finish_reason": finish}, usage=self._usage(one, finish))
        self._write(event, finish is not None)
        if finish:
            one.ended.set()

    def _text(self, one: Sequence) -> dict[str, Any]:
        first = one.done - one.held
        numbers = range(first, one.done)
        text = "".join(f"{_word(one.number, n, self.faults)} " for n in numbers)
        if self.faults.no_text and one.done % 2:
            text = ""
        if not self.chat:
            return {"text": text}
        return {"delta": {"reasoning_content" if self.faults.reasoning and first < 5 else "content": text}}

    def _usage(self, one: Sequence, finish: str | None) -> dict[str, Any] | None:
        kind = self.faults.usage
        if kind == "zeros":
            return {"prompt_tokens": 0, "completion_tokens": 0, "prompt_tokens_details": None}
        if kind in ("none", "null") or not (finish or (self.running and kind == "each")):
            return None
        details = None if self.faults.null_details else {"cached_tokens": one.cached}
        return {"prompt_tokens": one.prompt, "completion_tokens": one.done, "prompt_tokens_details": details}

    def _event(self, choice: dict[str, Any], usage: Any = None, error: Any = None) -> bytes:
        event: dict[str, Any] = {"error": error} if error else {"choices": [{"index": 0, **choice}]}
        if usage is not None or self.faults.usage == "null":
            event["usage"] = usage
        return b"data: " + json.dumps(event).encode() + b"\n\n"

    def _write(self, event: bytes, last: bool) -> None:
        self.lump.append(event + (b"data: [DONE]\n\n" if last else b""))
        if not last and (self.faults.lumps == 0 or len(self.lump) < self.faults.lumps):
            return
        data, self.lump = b"".join(self.lump), []
        if not self.writer.is_closing():
            self.writer.write(b"%x\r\n%s\r\n" % (len(data), data) + (b"0\r\n\r\n" if last else b""))


def _word(request: int, token: int, faults: Faults) -> str:
    """A word that does not come again in a short cycle, unless asked for."""
    mixed = 7 if faults.same_text else (token * 2654435761 + request * 40503 + token * token * 97) >> 7
    return WORDS[mixed % len(WORDS)]
