"""What every engine's adapter has in common: its HTTP calls and the interface that measuring uses."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from speedmatrix import redact, sse
from speedmatrix.cells import Capacity
from speedmatrix.config import Server

TIMEOUT_S = 10.0
MAX_BODY_BYTES = 64 * 1024 * 1024


class EngineError(Exception):
    """The server did not answer as its engine should; the message is one line for the person."""


@dataclass(frozen=True)
class Facts:
    """What is served: `served` (version, model, quantization, …) and what it can hold."""

    served: dict[str, str | int | None]
    capacity: Capacity


class Engine(ABC):
    """One server, through its engine's eyes. Methods raise EngineError."""

    completions_path = "/v1/completions"

    def __init__(self, server: Server) -> None:
        self.server = server
        self._session = requests.Session()
        self._session.headers.update(server.headers)
        self._session.trust_env = False  # a proxy variable must not come between us and what we measure

    @property
    def completions_url(self) -> str:
        """Where completions are asked for."""
        return self.server.url + self.completions_path

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

    @abstractmethod
    def tokenize(self, text: str, with_special: bool) -> list[int]:
        """The server's own tokenizer; `with_special`: with the tokens it opens a prompt with."""

    @abstractmethod
    def requests_inside(self) -> int:
        """Requests that the server runs or queues at this moment."""

    @abstractmethod
    def requests_waiting(self) -> int | None:
        """Requests that the server queues at this moment; None where it does not tell."""

    @abstractmethod
    def generated_tokens(self) -> float | None:
        """The server's own running count of generated tokens; None where it has none."""

    @abstractmethod
    def requests_running(self) -> float | None:
        """The server's gauge of running requests; None where it has none."""

    def prefix_hits(self) -> float | None:
        """The server's running count of prompt tokens found in its prefix cache; None where it has none."""
        return None

    def probe(self) -> None:
        """One request of one token, whatever comes of it: some gauges move only when a request is scheduled."""
        with contextlib.suppress(EngineError):
            prompt = self.tokenize("a", True)
            body = {"model": self.model(), "prompt": prompt, "max_tokens": 1}
            self._call("POST", self.completions_path, body)

    def body(self, model: str, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        """A streaming request that generates exactly `max_tokens` where the engine can."""
        return {
            "model": model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }

    def model(self) -> str:
        """The served name: the config's, else the only one that the server lists."""
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
        over = {key: value for key, value in vars(stated).items() if value not in (None, "unknown")}
        said = {key: redact.redact_text(v) if isinstance(v, str) else v for key, v in self.server.facts.items()}
        return Facts(facts.served | said, replace(facts.capacity, **over))

    def _call(self, method: str, path: str, body: Any = None) -> requests.Response:
        try:
            answer = self._session.request(method, self.server.url + path, json=body, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            raise EngineError(f"{self.server.url}{path} can't be reached: {_cause(error)}") from None
        if answer.status_code != 200:
            advice = ""
            if answer.status_code in (401, 403):
                advice = f": name the variable that holds the key in servers.{self.server.name}.api_key_env"
            raise EngineError(f"{self.server.url}{path} answered {answer.status_code} ({_said(answer)}){advice}")
        return answer

    def _json(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._call(method, path, body)
        try:
            return answer.json()
        except ValueError:
            raise EngineError(f"{self.server.url}{path} answered something that is no JSON: {_said(answer)}") from None

    def _metrics(self, path: str = "/metrics") -> dict[str, float]:
        """Prometheus metrics by name, summed over their labels."""
        totals: dict[str, float] = {}
        for sample in self._samples(path):
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
        return totals

    def _labels(self, name: str, path: str = "/metrics") -> list[dict[str, str]]:
        """The labels of each sample of one metric: how engines tell settings."""
        return [sample.labels for sample in self._samples(path) if sample.name == name]

    def _samples(self, path: str) -> list[Sample]:
        try:
            families = list(text_string_to_metric_families(self._call("GET", path).text))
        except ValueError:
            raise EngineError(f"{self.server.url}{path} is no page of Prometheus metrics") from None
        return [sample for family in families for sample in family.samples]


def _cause(error: requests.RequestException) -> str:
    return "no answer in time" if isinstance(error, requests.Timeout) else "no connection"


def _said(answer: requests.Response) -> str:
    try:
        return sse.error_message(answer.json())
    except ValueError:
        return sse.error_message(answer.text[:1000])
