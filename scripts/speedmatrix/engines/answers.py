"""One HTTP answer, read whole: bounded in size and time, never unpacked, never followed elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import requests
import urllib3

from speedmatrix import untrusted

MAX_BODY_BYTES = 64 * 2**20  # 256K token ids with their texts are some 10 MiB
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
    parts, size = [], 0
    asked = session.request(method, url, json=body, timeout=timeout_s, stream=True, allow_redirects=False)
    with asked as answer:
        packed = answer.headers.get("Content-Encoding", "identity")
        if packed.lower() != "identity":
            raise NotUsable(f"its answer is packed ({untrusted.line(packed, 20)}) though that was not asked for")
        while part := _part(answer):
            parts.append(part)
            size += len(part)
            if size > MAX_BODY_BYTES:
                raise NotUsable(f"its answer is larger than {MAX_BODY_BYTES // 2**20} MiB")
            if time.monotonic() > deadline:
                raise requests.Timeout
        return Answer(answer.status_code, answer.headers, b"".join(parts))


def _part(answer: requests.Response) -> bytes:
    """What has arrived of the body, waiting for a first byte; empty at its end."""
    try:
        return bytes(answer.raw.read1(_READ_BYTES, decode_content=False))
    except urllib3.exceptions.ReadTimeoutError as error:
        raise requests.Timeout from error
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise NotUsable(f"its answer broke off ({type(error).__name__})") from error
