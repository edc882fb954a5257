"""An engine's HTTP calls: asked patiently where the server is busy, answered whole, errors in one line."""

from __future__ import annotations

import time
from typing import Any

import requests
import urllib3

from speedmatrix import retry, untrusted
from speedmatrix.config import Server
from speedmatrix.engines.answers import Answer, NotUsable, fetch, stream

TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 3600.0  # of a completion read to its end: a long prompt on a slow machine


class EngineError(Exception):
    """The server did not answer as its engine should; the message is one line for the person.

    `status`: of HTTP. `lasting`: waiting can't cure it.
    """

    status: int | None = None
    lasting = False


class Answered(EngineError):
    """The server answered, but not with 200."""

    def __init__(self, answer: Answer, line: str) -> None:
        super().__init__(line)
        self.status: int = answer.status_code
        self.lasting = answer.status_code in (401, 403)
        self.said = said_by(answer)
        self.retry_s = retry.after_s(answer.headers.get("Retry-After"))


class Http:
    """Calls to one server. Raises EngineError."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._session = requests.Session()
        self._session.headers.update({"Accept-Encoding": "identity", **server.headers})
        self._session.verify = server.verify_tls
        self._session.trust_env = False  # a proxy variable must not come between us and what we measure
        if server.verify_tls is False:  # as the config asks for: no warning at every request
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    def _call(self, method: str, path: str, body: Any = None, timeout_s: float = TIMEOUT_S) -> Answer:
        url = self.server.url + path
        try:
            answer = self._request(method, url, body, timeout_s)
        except requests.RequestException as error:
            unable = "can't be used" if isinstance(error, NotUsable) else "can't be reached"
            failed = EngineError(f"{url} {unable}: {_cause(error)}")
            failed.lasting = isinstance(error, requests.exceptions.SSLError) and "CERTIFICATE" in str(error).upper()
            raise failed from None
        if answer.status_code != 200:
            advice = ""
            if answer.status_code in (401, 403):
                advice = f": name the variable that holds the key in servers.{self.server.name}.api_key_env"
            if 300 <= answer.status_code < 400:
                advice = f": it sends elsewhere; name the address that answers itself in servers.{self.server.name}.url"
            raise Answered(answer, f"{url} answered {answer.status_code} ({said_by(answer)}){advice}")
        return answer

    def _patiently(self, method: str, path: str, body: Any) -> Answer:
        """A request for which a server that is busy (429, 503) is waited for."""
        deadline = time.monotonic() + retry.PATIENCE_S
        while True:
            try:
                return self._call(method, path, body, timeout_s=REQUEST_TIMEOUT_S)
            except Answered as answered:
                if answered.status not in retry.BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(answered.retry_s)

    def _request(self, method: str, url: str, body: Any, timeout_s: float) -> Answer:
        streams = isinstance(body, dict) and body.get("stream") is True
        read = stream if streams else fetch
        try:
            return read(self._session, method, url, body, timeout_s)
        except requests.ConnectionError:  # a kept connection that the server has dropped meanwhile: on a new one
            return read(self._session, method, url, body, timeout_s)

    def _json(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._call(method, path, body)
        try:
            return answer.json()
        except ValueError:
            raise EngineError(
                f"{self.server.url}{path} answered something that is no JSON: {said_by(answer)}"
            ) from None

    def _object(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        said = self._json(method, path, body)
        if not isinstance(said, dict):
            raise EngineError(f"{self.server.url}{path} answered {untrusted.message(said)[:100]!r}, no JSON object")
        return said


def _cause(error: requests.RequestException) -> str:
    if isinstance(error, NotUsable):
        return str(error)
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not trusted (verify_tls: a file with those to trust, or false)"
    return "no answer in time" if isinstance(error, requests.Timeout) else "no connection"


def said_by(answer: Answer) -> str:
    try:
        return untrusted.message(answer.json())
    except ValueError:
        return untrusted.message(answer.content)
