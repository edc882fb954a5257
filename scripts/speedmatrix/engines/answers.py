"""One HTTP answer, read whole: bounded in size and time, never unpacked, never followed elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import requests
import urllib3

from speedmatrix import sse, untrusted

MAX_BODY_BYTES = 64 * 2**20  # 256K token ids with their texts are some 10 MiB
REST_S = 120.0  # of a probe's two tokens, once the first is there
_READ_BYTES = 2**16


class NotUsable(requests.RequestException):
    """The answer is one that is not read; the message says why."""


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status_code: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def text(self) -> str:
        """The body as UTF-8, whatever it is."""
        return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON. ValueError where it is none."""
        return untrusted.loads(self.content)


def fetch(session: requests.Session, method: str, url: str, body: Any, timeout_s: float) -> Answer:
    """Ask and read the answer within `timeout_s` seconds. Raises requests.RequestException."""
    deadline = time.monotonic() + timeout_s
    asked = session.request(method, url, json=body, timeout=timeout_s, stream=True, allow_redirects=False)
    with asked as answer:
        return Answer(answer.status_code, answer.headers, b"".join(_parts(answer, deadline)))


def stream(session: requests.Session, method: str, url: str, body: Any, timeout_s: float) -> Answer:
    """`fetch` for a completion's stream, whose end may be its finish reason alone: what comes until then is read.

    Once its first token is there, the rest must come within REST_S. Raises requests.RequestException.
    """
    deadline = time.monotonic() + timeout_s
    asked = session.request(method, url, json=body, timeout=timeout_s, stream=True, allow_redirects=False)
    with asked as answer, contextlib.ExitStack() as limits:
        reader, parts = _Reader(answer, limits), []
        try:
            for part in _parts(answer, deadline):
                parts.append(part)
                if reader.ended_by(part):
                    break
        except requests.RequestException:
            if not reader.finished:
                raise
        return Answer(answer.status_code, answer.headers, b"".join(parts))


class _Reader:
    """Follows a stream of events, and hangs up when it is over or goes on for too long."""

    def __init__(self, answer: requests.Response, limits: contextlib.ExitStack) -> None:
        self._answer, self._limits, self._decoder = answer, limits, sse.Decoder()
        self._began = self.finished = False

    def ended_by(self, part: bytes) -> bool:
        """Whether `part` says that nothing follows: [DONE], or what is no completion's event."""
        try:
            return any(data == sse.DONE or self._note(sse.parse(data)) for data in self._decoder.feed(part))
        except sse.StreamError:
            return self._answer.status_code == 200

    def _note(self, event: sse.Event) -> bool:
        if event.finish and not self.finished:
            self.finished = True
            self._hang_up_after(sse.GRACE_S)
        elif event.visible and not self._began:
            self._began = True
            self._hang_up_after(REST_S)
        return False

    def _hang_up_after(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._hang_up)
        timer.daemon = True
        timer.start()
        self._limits.callback(timer.cancel)

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # it ended by itself in this moment
            self._answer.raw.shutdown()  # wakes the read that waits


def _parts(answer: requests.Response, deadline: float) -> Iterator[bytes]:
    """The body piece by piece. Raises NotUsable and requests.Timeout."""
    packed = answer.headers.get("Content-Encoding", "identity")
    if packed.lower() != "identity":
        raise NotUsable(f"its answer is packed ({untrusted.line(packed, 20)}) though that was not asked for")
    size = 0
    while part := _part(answer):
        yield part
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise NotUsable(f"its answer is larger than {MAX_BODY_BYTES // 2**20} MiB")
        if time.monotonic() > deadline:
            raise requests.Timeout


def _part(answer: requests.Response) -> bytes:
    """What has arrived of the body, waiting for a first byte; empty at its end."""
    try:
        return bytes(answer.raw.read1(_READ_BYTES, decode_content=False))
    except urllib3.exceptions.ReadTimeoutError as error:
        raise requests.Timeout from error
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise NotUsable(f"its answer broke off ({type(error).__name__})") from error
