"""llama.cpp's server: /props, /slots, /metrics, and per-event timings."""

from __future__ import annotations

import re
from typing import Any

from speedmatrix.cells import Capacity
from speedmatrix.engines.base import Engine, EngineError, Facts

_UNIFIED = re.compile(r"(?:^|\s)(?:--kv-unified|-kvu)(?:\s|$)")


class LlamaCpp(Engine):
    """A llama.cpp server (llama-server, or the embedded one)."""

    def facts(self) -> Facts:
        """From /props and /v1/models; whether slots share one KV pool only the launch command tells."""
        props = self._json("GET", "/props")
        model = self.model()
        meta = self._meta(model)
        version, _, commit = str(props.get("build_info") or "").partition("-")
        served = {
            "version": version or None,
            "commit": commit if commit not in ("", "unknown") else None,
            "build": props.get("build_info"),
            "model": model,
            "quantization": props.get("model_ftype"),
            "parameters": meta.get("n_params"),
            "size_bytes": meta.get("size"),
            "revision": None,
            "repository": "github.com/ggml-org/llama.cpp",
            "backend": None,
        }
        return self.with_config(Facts(served, self._capacity(props)))

    def tokenize(self, text: str, with_special: bool) -> list[int]:
        """Token ids from `/tokenize`."""
        answer = self._json("POST", "/tokenize", {"content": text, "add_special": with_special, "parse_special": False})
        return [int(token) for token in answer["tokens"]]

    def requests_inside(self) -> int | None:
        """Slots that process, from /slots (which can be off); and the deferred ones where /metrics is on."""
        try:
            slots = self._json("GET", "/slots")
        except EngineError:
            return None
        return sum(bool(slot.get("is_processing")) for slot in slots) + (self.requests_waiting() or 0)

    def requests_waiting(self) -> int | None:
        """The gauge `requests_deferred`, where --metrics is on (it is off by default)."""
        deferred = self._metric("llamacpp:requests_deferred")
        return None if deferred is None else int(deferred)

    def generated_tokens(self) -> float | None:
        """n_decode_total × n_busy_slots_per_decode: the predicted-tokens counter moves only when a request ends."""
        counters = {sample.name: sample.value for sample in self._samples()}
        calls, busy = counters.get("llamacpp:n_decode_total"), counters.get("llamacpp:n_busy_slots_per_decode")
        return None if calls is None or busy is None else calls * busy

    def requests_running(self) -> float | None:
        """The gauge `requests_processing`."""
        return self._metric("llamacpp:requests_processing")

    def optional_fields(self) -> dict[str, Any]:
        """With timings on each event: a running count of tokens, prompt tokens, and the server's prefill time."""
        return super().optional_fields() | {"timings_per_token": True}

    def _meta(self, model: str) -> dict[str, Any]:
        entries = self._json("GET", "/v1/models").get("data", [])
        return next((entry.get("meta") or {} for entry in entries if entry.get("id") == model), {})

    def _capacity(self, props: dict[str, Any]) -> Capacity:
        """A slot's context is the limit of a request; a unified pool is one slot's context, split ones add up."""
        slots = int(props.get("total_slots") or 0) or None
        context = int(props["default_generation_settings"]["n_ctx"])
        if self._unified():
            return Capacity(context, context, slots, "one pool shared by all slots (--kv-unified)")
        if slots is None:
            return Capacity(None, context, None, "unknown")
        return Capacity(slots * context, context, slots, f"{slots} slots of {context:,} tokens each")

    def _unified(self) -> bool:
        launch = self.server.launch
        command = launch.command if launch else self.server.facts.get("launch_command", "")
        text = command if isinstance(command, str) else " ".join(command)
        return bool(_UNIFIED.search(text))
