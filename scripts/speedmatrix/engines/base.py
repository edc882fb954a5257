"""What every engine's adapter has in common: its HTTP calls and the interface that measuring uses."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client.samples import Sample

from speedmatrix import redact, sse, untrusted
from speedmatrix.cells import Capacity
from speedmatrix.config import Server
from speedmatrix.dialect import Dialect, Refusal
from speedmatrix.engines import prometheus
from speedmatrix.engines.answers import Answer
from speedmatrix.engines.counters import Counters
from speedmatrix.engines.http import Answered, EngineError, Http

_MODEL_CHARACTERS = 500


@dataclass(frozen=True)
class Facts:
    """What is served: `served` (version, model, quantization, …) and what it can hold."""

    served: dict[str, str | int | None]
    capacity: Capacity


class Engine(Http, ABC):
    """One server, through its engine's eyes. Methods raise EngineError; what the server does not tell is None."""

    def __init__(self, server: Server, dialect: Dialect | None = None) -> None:
        super().__init__(server)
        self.dialect = dialect or Dialect()
        self._model: str | None = None

    @property
    def completions_url(self) -> str:
        """Where completions are asked for."""
        return self.server.url + self.dialect.path

    def healthy(self) -> bool:
        """Whether the server can take requests: `/health` answers 200.

        Raises EngineError where no waiting helps: the key or the certificate is wrong.
        """
        return self._answering("/health")

    def _answering(self, path: str) -> bool:
        try:
            self._call("GET", path)
        except EngineError as error:
            if error.lasting:
                raise
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

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these requests at the server, where hanging up does not do it."""

    def ask(self, dialect: Dialect, prompt: list[int] | str, extra: dict[str, Any]) -> Refusal | None:
        """One small request in `dialect`, to its end; how it was refused, or None. `extra`: the config's own fields."""
        try:
            self._counted(self.body(prompt, 2, dialect) | extra, dialect)
        except Answered as answered:
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

    def listed(self) -> list[dict[str, Any]]:
        """The entries of /v1/models that have a name."""
        listed = self._object("GET", "/v1/models").get("data")
        entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        return [entry for entry in entries if isinstance(entry.get("id"), str)]

    def _find_model(self) -> str:
        names = [entry["id"] for entry in self.listed()]
        wanted = self.server.model
        shown = untrusted.line(", ".join(names)) or "none"
        if wanted and wanted not in names:
            raise EngineError(f"{self.server.url} does not serve {wanted!r}; it lists: {shown}")
        if not wanted and len(names) != 1:
            raise EngineError(
                f"servers.{self.server.name}.model: name the model to measure; {self.server.url} lists: {shown}"
            )
        if len(wanted or names[0]) > _MODEL_CHARACTERS:
            raise EngineError(f"{self.server.url} lists a model whose name has over {_MODEL_CHARACTERS} characters")
        return wanted or names[0]

    def with_config(self, facts: Facts) -> Facts:
        """`facts` with what the config states laid over what was detected."""
        stated = self.server.capacity
        over = {key: value for key, value in vars(stated).items() if value != getattr(Capacity(), key)}
        said = {key: redact.redact_text(v) if isinstance(v, str) else v for key, v in self.server.facts.items()}
        told = {key: untrusted.fact(value) for key, value in facts.served.items()}
        known = replace(
            facts.capacity,
            kv_tokens=untrusted.positive(facts.capacity.kv_tokens),
            max_context=untrusted.positive(facts.capacity.max_context),
            max_concurrency=untrusted.positive(facts.capacity.max_concurrency),
        )
        return Facts(told | said, replace(known, **over))

    def _token_ids(self, path: str, body: Any) -> list[int]:
        """The token ids that `path` answers with."""
        ids = self._object("POST", path, body).get("tokens")
        if not isinstance(ids, list) or any(untrusted.count(one, 2**31) is None for one in ids):
            raise EngineError(f"{self.server.url}{path} answered with something else than token ids")
        return [int(one) for one in ids]

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
            return prometheus.samples(self._call("GET", "/metrics").text)
        except EngineError:
            return []


def _events(answer: Answer) -> Iterator[sse.Event]:
    return (sse.parse(data) for data in sse.Decoder().feed(answer.content) if data != sse.DONE)
