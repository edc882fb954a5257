"""vLLM's OpenAI server: /version, /metrics, continuous usage in streams."""

from __future__ import annotations

import re

from speedmatrix import launching, untrusted
from speedmatrix.cells import Capacity
from speedmatrix.engines.base import Engine, Facts
from speedmatrix.engines.counters import Counters

_COUNTERS = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "generated": "vllm:generation_tokens_total",
    "prefix_hits": "vllm:prefix_cache_hits_total",
    "preemptions": "vllm:num_preemptions_total",
    "drafts": "vllm:spec_decode_num_drafts_total",
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
    "prefill_s": "vllm:request_prefill_time_seconds_sum",
    "prefills": "vllm:request_prefill_time_seconds_count",
}
_OPTIONS = {
    "quantization": ("--quantization", "-q"),
    "revision": ("--revision",),
    "tensor_parallel": ("--tensor-parallel-size", "-tp"),
    "pipeline_parallel": ("--pipeline-parallel-size", "-pp"),
    "data_parallel": ("--data-parallel-size", "-dp"),
    "context_parallel": ("--decode-context-parallel-size", "-dcp"),
    "attention_backend": ("--attention-backend", "VLLM_ATTENTION_BACKEND"),
    "kv_cache_type": ("--kv-cache-dtype",),
    "max_num_seqs": ("--max-num-seqs",),
}
_COMMIT = re.compile(r"\+g([0-9a-f]{7,40})")


class Vllm(Engine):
    """A vLLM server."""

    def facts(self) -> Facts:
        """From /version, /v1/models, /metrics and the launch command's options."""
        version = str(self._object("GET", "/version")["version"])
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
        return self.with_config(Facts(served | self._options(), self._capacity(model)))

    def _options(self) -> dict[str, str | int | None]:
        """What the launch command says of how the model is run."""
        words = launching.words_of(self.server)
        told: dict[str, str | int | None] = {fact: launching.option(words, *names) for fact, names in _OPTIONS.items()}
        caching = launching.switch(words, "enable-prefix-caching")
        if caching is not None:
            told["prefix_caching"] = "on" if caching else "off"
        return told

    def tokenize(self, text: str, with_special: bool) -> list[int]:
        """Token ids from `/tokenize`."""
        body = {"model": self.model(), "prompt": text, "add_special_tokens": with_special}
        return self._token_ids("/tokenize", body)

    def counters(self) -> Counters:
        """From /metrics, summed over engines."""
        totals = self._totals()
        return Counters(**{field: totals.get(name) for field, name in _COUNTERS.items()})

    def _capacity(self, model: str) -> Capacity:
        """kv_cache_size_tokens first: blocks × block size is many times too much for hybrid models."""
        limit = next((entry.get("max_model_len") for entry in self.listed() if entry["id"] == model), None)
        engines = self._labels("vllm:cache_config_info")
        told = [_number(labels, "kv_cache_size_tokens") for labels in engines]
        source = "kv_cache_size_tokens"
        if not all(told):
            stated = launching.option(launching.words_of(self.server), *_OPTIONS["context_parallel"]) or "1"
            share = int(stated) if stated.isascii() and stated.isdigit() else 0  # 0: no number, so it is not known
            blocks = [(_number(labels, "num_gpu_blocks"), _number(labels, "block_size")) for labels in engines]
            told = [count * size * share if count and size else None for count, size in blocks]
            source = "blocks × block size" + (f" × context-parallel size {share}" if share > 1 else "")
        sizes = [size for size in told if size]
        if not sizes or len(sizes) < len(told):
            return Capacity(None, limit, None, "unknown: /metrics does not tell")
        return Capacity(sum(sizes), limit, None, source, ranks=len(sizes))


def _number(labels: dict[str, str], name: str) -> int | None:
    text = labels.get(name, "")
    return untrusted.count(int(text)) if text.isascii() and text.isdigit() and len(text) < 20 else None
