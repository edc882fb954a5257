"""Opens streaming requests: aiohttp, a connection of its own for each, bodies built before the clock starts."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from speedmatrix import retry, sse
from speedmatrix.load import LoadError, Opener


def session(headers: dict[str, str], verify_tls: bool | str = True) -> aiohttp.ClientSession:
    """A client session that reuses no connection and has no time limits of its own (lanes watch for stalls).

    `verify_tls`: False takes any certificate; a path names a file with those to trust.
    """
    trusted = ssl.create_default_context(cafile=verify_tls) if isinstance(verify_tls, str) else verify_tls
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True, ssl=trusted),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
        # identity: a proxy that compresses holds events back
        headers={"Content-Type": "application/json", "Accept-Encoding": "identity", **headers},
        trace_configs=[_connected_trace()],
        auto_decompress=False,
    )


def _connected_trace() -> aiohttp.TraceConfig:
    """Tells each request the moment before its head is written: from there TTFT counts, without TCP and TLS.

    Requests that start together are written one a turn of the event loop: else the first one's token would be read,
    and timed, only after the last request was written, some 0.1 ms later for each of them.
    """
    config = aiohttp.TraceConfig()
    turn = asyncio.Lock()

    async def connected(_session: Any, context: Any, _params: Any) -> None:
        async with turn:
            await asyncio.sleep(0)
        context.trace_request_ctx()

    config.on_connection_create_end.append(connected)
    return config


def opener(http: aiohttp.ClientSession, url: str, body: Callable[[int], bytes], patient: Callable[[], bool]) -> Opener:
    """Opens request `index` with `body(index)`. While `patient()`, 429 and 503 are waited out; else they fail.

    A connection that breaks before the first byte of the answer is tried once more.
    """

    @asynccontextmanager
    async def open_one(index: int, started: Callable[[], None]) -> AsyncIterator[AsyncIterator[bytes]]:
        answer = await _post(http, url, body(index), started, patient)
        try:
            yield _chunks(answer)
        finally:
            answer.close()

    return open_one


async def _post(
    http: aiohttp.ClientSession,
    url: str,
    body: bytes,
    started: Callable[[], None],
    patient: Callable[[], bool],
) -> aiohttp.ClientResponse:
    deadline = asyncio.get_running_loop().time() + retry.PATIENCE_S
    broken = False
    while True:
        try:
            answer = await http.post(url, data=body, trace_request_ctx=started)
        except aiohttp.ClientError as error:
            if broken:
                raise LoadError(f"the server can't be reached: {type(error).__name__}") from None
            broken = True
            continue
        if answer.status == 200:
            return answer
        text = await answer.text(errors="replace")
        wait = answer.status in retry.BUSY and patient() and asyncio.get_running_loop().time() < deadline
        if not wait:
            raise LoadError(f"HTTP {answer.status}: {_message(text)}")
        await asyncio.sleep(retry.after_s(answer.headers.get("Retry-After")))


def _message(text: str) -> str:
    try:
        return sse.error_message(json.loads(text))
    except ValueError:
        return sse.error_message(text[:1000])


async def _chunks(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        while chunk := await answer.content.readany():
            yield chunk
    except aiohttp.ClientError as error:
        raise LoadError(f"the connection was cut in mid-stream: {type(error).__name__}") from None
