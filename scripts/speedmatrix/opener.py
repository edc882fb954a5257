"""Opens streaming requests: aiohttp, a connection of its own for each, bodies built before the clock starts."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from speedmatrix import retry, untrusted
from speedmatrix.load import LoadError, Opener

ERROR_BYTES, ERROR_S = 2**16, 10.0  # of an answer that is no stream: read for its message


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
            answer = await http.post(url, data=body, trace_request_ctx=started, allow_redirects=False)
        except aiohttp.ClientResponseError as error:
            said = untrusted.line(error.message)
            raise LoadError(f"the server's answer is no HTTP that can be read: {said}") from None
        except aiohttp.ClientError as error:
            if broken:
                raise LoadError(f"the server can't be reached: {type(error).__name__}") from None
            broken = True
            continue
        packed = answer.headers.get("Content-Encoding", "identity")
        if answer.status == 200 and packed.lower() == "identity":
            return answer
        said = f"packed ({packed}) though that was not asked for" if answer.status == 200 else await _message(answer)
        answer.close()
        wait = answer.status in retry.BUSY and patient() and asyncio.get_running_loop().time() < deadline
        if not wait:
            raise LoadError(f"HTTP {answer.status}: {untrusted.line(said)}")
        await asyncio.sleep(retry.after_s(answer.headers.get("Retry-After")))


async def _message(answer: aiohttp.ClientResponse) -> str:
    """What an answer that is no stream says, by its beginning."""
    if 300 <= answer.status < 400:
        return f"it sends elsewhere ({answer.headers.get('Location')}): name the address that answers itself in url"
    text = b""
    with contextlib.suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(ERROR_S):
            while len(text) < ERROR_BYTES and (part := await answer.content.readany()):
                text += part
    try:
        return untrusted.message(untrusted.loads(text))
    except ValueError:
        return untrusted.message(text)


async def _chunks(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        while chunk := await answer.content.readany():
            yield chunk
    except aiohttp.ClientError as error:
        raise LoadError(f"the connection was cut in mid-stream: {type(error).__name__}") from None
