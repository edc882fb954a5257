"""Anything that speaks OpenAI's API: no counters, no facts but the config's."""

from __future__ import annotations

from speedmatrix.cells import Capacity
from speedmatrix.engines.base import Engine, Facts


class OpenAI(Engine):
    """A server of which only the completions and the list of models are known."""

    def healthy(self) -> bool:
        """Whether /v1/models answers: /health is not part of the API. Raises EngineError where no waiting helps."""
        return self._answering("/v1/models")

    def facts(self) -> Facts:
        """The served name; everything else is what the config says."""
        served: dict[str, str | int | None] = dict.fromkeys(
            ["version", "commit", "build", "quantization", "parameters", "size_bytes"]
        )
        served |= {"model": self.model(), "revision": None, "repository": None, "backend": None}
        return self.with_config(Facts(served, Capacity()))
