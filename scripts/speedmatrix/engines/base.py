"""What every engine's adapter has in common: its HTTP calls and the interface that measuring uses."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import requests
import urllib3
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from speedmatrix import redact, retry, sse
from speedmatrix.cells import Capacity
from speedmatrix.config import Server
from speedmatrix.dialect import Dialect, Refusal
from speedmatrix.engines.counters import Counters

TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 3600.0  # of a completion read to its end: a long prompt on a slow machine
MAX_BODY_BYTES = 64 * 1024 * 1024


class EngineError(Exception):
    """The server did not answer as its engine should; the message is one line for the person. `status`: of HTTP."""

    status: int | None = None


@dataclass(frozen=True)
class Facts:
    """What is served: `served` (version, model, quantization, …) and what it can hold."""

    served: dict[str, str | int | None]
    capacity: Capacity


class Engine(ABC):
    """One server, through its engine's eyes. Methods raise EngineError; what the server does not tell is None."""

    def __init__(self, server: Server, dialect: Dialect | None = None) -> None:
        self.server = server
        self.dialect = dialect or Dialect()
        self._session = requests.Session()
        self._session.headers.update(server.headers)
        self._session.verify = server.verify_tls
        if server.verify_tls is False:  # as the config asks for: no warning at every request
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        self._model: str | None = None
        self._session.trust_env = False  # a proxy variable must not come between us and what we measure

    @property
    def completions_url(self) -> str:
        """Where completions are asked for."""
        return self.server.url + self.dialect.path

    def healthy(self) -> bool:
        """Whether `/health` answers 200: the server can take requests. Never raises."""
        try:
            self._call("GET", "/health")
        except EngineError:
            return False
        return True

    @abstractmethod
    def facts(self) -> Facts:
        """What the server tells about itself, read anew."""

    def tokenize(self, text: str, with_special: bool) -> list[int]:
        """The server's own tokenizer; `with_special`: with the tokens it opens a prompt with."""
        raise EngineError(f"{self.server.url} has no tokenizer to ask")

    def counters(self) -> Counters:
        """The server's own counts now, read at one go."""
        return Counters()

    def requests_inside(self) -> int | None:
        """Requests that the server runs or queues at this moment."""
        now = self.counters()
        return None if now.running is None or now.waiting is None else int(now.running + now.waiting)

    def optional_fields(self) -> dict[str, Any]:
        """Fields of a request that make it measurable better, where the server takes them."""
        return {"ignore_eos": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}

    def body(self, prompt: list[int] | str, max_tokens: int, dialect: Dialect | None = None) -> dict[str, Any]:
        """A streaming request that generates exactly `max_tokens` where the server can."""
        return (dialect or self.dialect).body(self.model(), prompt, max_tokens, self.optional_fields())

    def answers(self, path: str) -> bool:
        """Whether a GET of `path` gives a JSON object: engines are told apart by it."""
        try:
            return isinstance(self._json("GET", path), dict)
        except EngineError:
            return False

    def naming(self, request_id: str) -> dict[str, Any]:
        """Fields of a request that give it an id, where the server aborts by id."""
        return {}

    def abort(self, request_ids: Iterable[str]) -> None:  # noqa: B027 (most engines need nothing)
        """End these requests at the server, where hanging up does not do it."""

    def ask(self, dialect: Dialect, prompt: list[int] | str, extra: dict[str, Any]) -> Refusal | None:
        """One small request in `dialect`, to its end; how it was refused, or None. `extra`: the config's own fields."""
        try:
            self._counted(self.body(prompt, 2, dialect) | extra, dialect)
        except _Answered as answered:
            if answered.status in (401, 403) or (answered.status >= 500 and answered.status != 501):
                raise
            return Refusal(answered.status, answered.said)
        return None

    def prompt_tokens(self, prompt: list[int] | str, extra: dict[str, Any]) -> int | None:
        """How many tokens the server's usage says `prompt` has, by a request of one token."""
        return self._counted(self.body(prompt, 1) | extra, self.dialect)

    def probe(self) -> None:
        """One request of one token, whatever comes of it: some gauges move only when a request is scheduled."""
        with contextlib.suppress(EngineError):
            self.prompt_tokens("a" if self.dialect.prompt == "text" else self.tokenize("a", True), {})

    def _counted(self, body: dict[str, Any], dialect: Dialect) -> int | None:
        """Stream one request to its end; its prompt tokens, where usage tells."""
        answer = self._patiently("POST", dialect.path, body)
        told = None
        try:
            for event in _events(answer):
                told = event.prompt_tokens or told
        except sse.StreamError as error:
            raise EngineError(str(error)) from None
        return told

    def model(self) -> str:
        """The served name: the config's, else the only one that the server lists. Asked for once."""
        self._model = self._model or self._find_model()
        return self._model

    def _find_model(self) -> str:
        names = [str(entry.get("id")) for entry in self._json("GET", "/v1/models").get("data", [])]
        wanted = self.server.model
        if wanted and wanted not in names:
            raise EngineError(f"{self.server.url} does not serve {wanted!r}; it lists: {', '.join(names)}")
        if not wanted and len(names) != 1:
            listed = ", ".join(names) or "none"
            raise EngineError(
                f"servers.{self.server.name}.model: name the model to measure; {self.server.url} lists: {listed}"
            )
        return wanted or names[0]

    def with_config(self, facts: Facts) -> Facts:
        """`facts` with what the config states laid over what was detected."""
        stated = self.server.capacity
        over = {key: value for key, value in vars(stated).items() if value != getattr(Capacity(), key)}
        said = {key: redact.redact_text(v) if isinstance(v, str) else v for key, v in self.server.facts.items()}
        return Facts(facts.served | said, replace(facts.capacity, **over))

    def _call(self, method: str, path: str, body: Any = None, timeout_s: float = TIMEOUT_S) -> requests.Response:
        url = self.server.url + path
        try:
            answer = self._request(method, url, body, timeout_s)
        except requests.RequestException as error:
            raise EngineError(f"{url} can't be reached: {_cause(error)}") from None
        if answer.status_code != 200:
            advice = ""
            if answer.status_code in (401, 403):
                advice = f": name the variable that holds the key in servers.{self.server.name}.api_key_env"
            raise _Answered(answer, f"{url} answered {answer.status_code} ({_said(answer)}){advice}")
        return answer

    def _patiently(self, method: str, path: str, body: Any) -> requests.Response:
        """A request for which a server that is busy (429, 503) is waited for."""
        deadline = time.monotonic() + retry.PATIENCE_S
        while True:
            try:
                return self._call(method, path, body, timeout_s=REQUEST_TIMEOUT_S)
            except _Answered as answered:
                if answered.status not in retry.BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(answered.retry_s)

    def _request(self, method: str, url: str, body: Any, timeout_s: float) -> requests.Response:
        try:
            return self._session.request(method, url, json=body, timeout=timeout_s)
        except requests.ConnectionError:  # a kept connection that the server has dropped meanwhile: on a new one
            return self._session.request(method, url, json=body, timeout=timeout_s)

    def _json(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._call(method, path, body)
        try:
            return answer.json()
        except ValueError:
            raise EngineError(f"{self.server.url}{path} answered something that is no JSON: {_said(answer)}") from None

    def _totals(self) -> dict[str, float]:
        """Prometheus metrics by name, summed over their labels (engines, ranks)."""
        totals: dict[str, float] = {}
        for sample in self._samples():
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
        return totals

    def _labels(self, name: str) -> list[dict[str, str]]:
        """The labels of each sample of one metric: how engines tell settings."""
        return [sample.labels for sample in self._samples() if sample.name == name]

    def _samples(self) -> list[Sample]:
        """All of /metrics; nothing where it is off, or where a proxy answers with something else."""
        try:
            families = list(text_string_to_metric_families(self._call("GET", "/metrics").text))
        except (EngineError, ValueError):
            return []
        return [sample for family in families for sample in family.samples]


class _Answered(EngineError):
    """The server answered, but not with 200."""

    def __init__(self, answer: requests.Response, line: str) -> None:
        super().__init__(line)
        self.status: int = answer.status_code
        self.said = _said(answer)
        self.retry_s = retry.after_s(answer.headers.get("Retry-After"))


def _events(answer: requests.Response) -> Iterator[sse.Event]:
    return (sse.parse(data) for data in sse.Decoder().feed(answer.content) if data != sse.DONE)


def _cause(error: requests.RequestException) -> str:
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not trusted (verify_tls: a file with those to trust, or false)"
    return "no answer in time" if isinstance(error, requests.Timeout) else "no connection"


def _said(answer: requests.Response) -> str:
    try:
        return sse.error_message(answer.json())
    except ValueError:
        return sse.error_message(answer.text[:1000])
