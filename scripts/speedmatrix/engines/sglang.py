"""SGLang's server: /server_info, /v1/loads, /tokenize, /metrics (with --enable-metrics), abort by request id."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from speedmatrix import untrusted
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
_MEMBERS = frozenset(["tp_rank", "pp_rank", "moe_ep_rank", "pid"])  # of one data-parallel rank, all telling the same
_MODES = "sglang:realtime_tokens_total"


class SGLang(Engine):
    """An SGLang server, as the source of its 0.5.23 says."""

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
        """From /metrics, and who waits from /v1/loads.

        generation_tokens_total and cached_tokens_total move only as a request ends; realtime_tokens_total at every
        step, with a row for each mode that was ever above 0. The token that prefill gives is in no mode of it: one for
        each request that has ended. What runs is left out: both places tell it of some steps before.
        """
        totals = self._totals()
        waiting = self._inside(totals)[1]
        if not any(name.startswith(_MODES) for name in totals):
            return Counters(waiting=waiting)
        return Counters(
            waiting=waiting,
            generated=totals.get(f"{_MODES} decode", 0.0) + totals.get("sglang:num_requests_total", 0.0),
            prefix_hits=totals.get(f"{_MODES} prefill_cache", 0.0),
            preemptions=totals.get("sglang:num_retracted_requests_total", 0.0),
        )

    def requests_inside(self) -> int | None:
        """Requests that the server runs or queues, up to 15 steps ago (40, and 30 s where idle, before /v1/loads)."""
        running, waiting = self._inside(self._totals())
        return None if running is None or waiting is None else int(running + waiting)

    def _inside(self, totals: dict[str, float]) -> tuple[float | None, float | None]:
        """Requests that run and wait, over all data-parallel ranks: by /v1/loads, else by the gauges in `totals`."""
        gauges = totals.get("sglang:num_running_reqs"), totals.get("sglang:num_queue_reqs")
        try:
            ranks = self._object("GET", "/v1/loads").get("loads")
        except EngineError:
            return gauges
        if not isinstance(ranks, list) or not ranks or not all(isinstance(rank, dict) for rank in ranks):
            return gauges
        running = [untrusted.count(rank.get("num_running_reqs")) for rank in ranks]
        waiting = [untrusted.count(rank.get("num_waiting_reqs")) for rank in ranks]
        if None in (*running, *waiting):
            return gauges
        return sum(filter(None, running)), sum(filter(None, waiting))

    def _totals(self) -> dict[str, float]:
        """Metrics by name (and mode), summed over data-parallel ranks.

        Every pipeline stage tells its rank's count, and with --enable-metrics-for-all-schedulers every tensor-parallel
        member: one of them counts. With priorities the row without one is the sum of all.
        """
        told: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for sample in self._samples():
            if not sample.labels.get("priority"):
                name = f"{sample.name} {sample.labels.get('mode', '')}".rstrip()
                key = name, frozenset(item for item in sample.labels.items() if item[0] not in _MEMBERS)
                told[key] = max(told.get(key, 0.0), sample.value)
        totals: dict[str, float] = {}
        for (name, _), value in told.items():
            totals[name] = totals.get(name, 0.0) + value
        return totals

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
        """max_total_num_tokens is each data-parallel rank's, of its context-parallel members together (in 0.5.23).

        Before, it was one member's: too little then, so that a cell is rather left out than run over.
        """
        tokens, ranks = info.get("max_total_num_tokens"), int(info.get("dp_size") or 1)
        told = next((entry.get("max_model_len") for entry in self.listed() if entry["id"] == self.model()), None)
        limit = told or info.get("context_length")
        most = _most_at_once(info)
        if not tokens:
            return Capacity(None, limit, most, "unknown: /server_info does not tell")
        source = "max_total_num_tokens" + (f" × {ranks}" if ranks > 1 else "")
        return Capacity(int(tokens) * ranks, limit, most, source, ranks=ranks)


def _most_at_once(info: dict[str, Any]) -> int | None:
    """Requests that run at once: of all data-parallel ranks, as each has resolved it, else as it was asked for."""
    states = info.get("internal_states")
    ranks = [state for state in states if isinstance(state, dict)] if isinstance(states, list) else []
    each = [untrusted.count(rank.get("effective_max_running_requests_per_dp")) for rank in ranks]
    told = [most for most in each if most]
    return sum(told) if told and len(told) == len(each) else info.get("max_running_requests")
