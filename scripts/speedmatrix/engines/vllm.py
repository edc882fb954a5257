"""vLLM's OpenAI server: /version, /metrics, continuous usage in streams."""

from __future__ import annotations

import re
from typing import Any

from speedmatrix.cells import Capacity
from speedmatrix.engines.base import Engine, Facts

_COMMIT = re.compile(r"\+g([0-9a-f]{7,40})")


class Vllm(Engine):
    """A vLLM server."""

    def facts(self) -> Facts:
        """From /version, /v1/models and /metrics; quantization and the like are for the config's `facts`."""
        version = str(self._json("GET", "/version")["version"])
        commit = _COMMIT.search(version)
        model = self.model()
        served = {
            "version": version,
            "commit": commit[1] if commit else None,
            "build": None,
            "model": model,
            "quantization": None,
            "parameters": None,
            "size_bytes": None,
            "revision": None,
            "repository": "github.com/vllm-project/vllm",
            "backend": None,
        }
        return self.with_config(Facts(served, self._capacity(model)))

    def tokenize(self, text: str, with_special: bool) -> list[int]:
        """Token ids from `/tokenize`."""
        body = {"model": self.model(), "prompt": text, "add_special_tokens": with_special}
        return [int(token) for token in self._json("POST", "/tokenize", body)["tokens"]]

    def requests_inside(self) -> int:
        """Running and waiting, summed over engines."""
        gauges = self._metrics()
        return int(gauges.get("vllm:num_requests_running", 0) + gauges.get("vllm:num_requests_waiting", 0))

    def requests_waiting(self) -> int | None:
        """The gauge num_requests_waiting, summed over engines."""
        return int(self._metrics().get("vllm:num_requests_waiting", 0))

    def generated_tokens(self) -> float | None:
        """The counter generation_tokens_total, summed over engines."""
        return self._metrics().get("vllm:generation_tokens_total")

    def requests_running(self) -> float | None:
        """The gauge num_requests_running, summed over engines."""
        return self._metrics().get("vllm:num_requests_running")

    def prefix_hits(self) -> float | None:
        """The counter prefix_cache_hits_total, summed over engines."""
        return self._metrics().get("vllm:prefix_cache_hits_total")

    def body(self, model: str, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        """With usage on every event: a running count of tokens."""
        options = {"include_usage": True, "continuous_usage_stats": True}
        return super().body(model, prompt, max_tokens) | {"stream_options": options}

    def _capacity(self, model: str) -> Capacity:
        """kv_cache_size_tokens first: blocks × block size is many times too much for hybrid models."""
        entries = self._json("GET", "/v1/models").get("data", [])
        limit = next((entry.get("max_model_len") for entry in entries if entry.get("id") == model), None)
        engines = self._labels("vllm:cache_config_info")
        tokens = [int(labels["kv_cache_size_tokens"]) for labels in engines if _number(labels, "kv_cache_size_tokens")]
        if tokens:
            return Capacity(sum(tokens), limit, None, "kv_cache_size_tokens")
        blocks = [(_number(labels, "num_gpu_blocks"), _number(labels, "block_size")) for labels in engines]
        sizes = [count * size for count, size in blocks if count and size]
        return Capacity(sum(sizes) or None, limit, None, "blocks × block size" if sizes else "unknown")


def _number(labels: dict[str, str], name: str) -> int | None:
    text = labels.get(name, "")
    return int(text) if text.isdigit() else None
