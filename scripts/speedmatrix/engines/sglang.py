"""SGLang's server: /server_info, /tokenize, /metrics (with --enable-metrics), abort by request id."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from speedmatrix.cells import Capacity
from speedmatrix.engines.base import Engine, Facts
from speedmatrix.engines.counters import Counters
from speedmatrix.engines.http import EngineError

_OPTIONS = {
    "quantization": "quantization",
    "revision": "revision",
    "tensor_parallel": "tp_size",
    "pipeline_parallel": "pp_size",
    "data_parallel": "dp_size",
    "context_parallel": "dcp_size",
    "attention_backend": "attention_backend",
    "kv_cache_type": "kv_cache_dtype",
    "max_num_seqs": "max_running_requests",
}


class SGLang(Engine):
    """An SGLang server. Written from its documented interface."""

    def facts(self) -> Facts:
        """From the server's arguments as /server_info repeats them, resolved."""
        info = self._info()
        served: dict[str, str | int | None] = dict.fromkeys(
            ["commit", "build", "parameters", "size_bytes", "revision", "backend"]
        )
        served |= {"version": info.get("version"), "model": self.model(), "repository": "github.com/sgl-project/sglang"}
        served |= {fact: info.get(name) for fact, name in _OPTIONS.items()}
        if "disable_radix_cache" in info:
            served["prefix_caching"] = "off" if info["disable_radix_cache"] else "on"
        return self.with_config(Facts(served, self._capacity(info)))

    def tokenize(self, text: str, with_special: bool) -> list[int]:
        """Token ids from `/tokenize`."""
        body = {"model": self.model(), "prompt": text, "add_special_tokens": with_special}
        return self._token_ids("/tokenize", body)

    def counters(self) -> Counters:
        """From /metrics. Generated tokens are left out: SGLang counts them as requests end, not as they are made."""
        totals = self._totals()
        return Counters(
            running=totals.get("sglang:num_running_reqs"),
            waiting=totals.get("sglang:num_queue_reqs"),
            prefix_hits=totals.get("sglang:cached_tokens_total"),
        )

    def naming(self, request_id: str) -> dict[str, Any]:
        """The request's own id, by which it is aborted."""
        return {"rid": request_id}

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these requests: hanging up alone may leave them running."""
        for request_id in request_ids:
            with contextlib.suppress(EngineError):
                self._call("POST", "/abort_request", {"rid": request_id})

    def _info(self) -> dict[str, Any]:
        try:
            return self._object("GET", "/server_info")
        except EngineError:  # its name until 2025
            return self._object("GET", "/get_server_info")

    def _capacity(self, info: dict[str, Any]) -> Capacity:
        """max_total_num_tokens is each data-parallel rank's, and each context-parallel member's."""
        tokens, ranks = info.get("max_total_num_tokens"), int(info.get("dp_size") or 1)
        share = int(info.get("dcp_size") or 1)
        told = next((entry.get("max_model_len") for entry in self.listed() if entry["id"] == self.model()), None)
        limit = info.get("context_length") or told
        most = info.get("max_running_requests")
        if not tokens:
            return Capacity(None, limit, most, "unknown: /server_info does not tell")
        source = "max_total_num_tokens" + "".join(f" × {n}" for n in (ranks, share) if n > 1)
        return Capacity(int(tokens) * ranks * share, limit, most, source, ranks=ranks)
