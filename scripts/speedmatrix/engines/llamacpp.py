"""llama.cpp's server: /props, /slots, /metrics, and per-event timings."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from typing import Any

from speedmatrix import launching
from speedmatrix.cells import Capacity
from speedmatrix.engines.base import Engine, Facts
from speedmatrix.engines.counters import Counters
from speedmatrix.engines.http import EngineError

_WORD = re.compile(r"[^\s'\"=]+")


class LlamaCpp(Engine):
    """A llama.cpp server (llama-server, or the embedded one)."""

    def facts(self) -> Facts:
        """From /props and /v1/models; whether slots share one KV pool only the launch command tells."""
        props = self._object("GET", "/props")
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
        body = {"content": text, "add_special": with_special, "parse_special": False}
        return self._token_ids("/tokenize", body)

    def requests_inside(self) -> int | None:
        """Slots that process, from /slots (which can be off); and the deferred ones where /metrics is on."""
        try:
            slots = self._json("GET", "/slots")
        except EngineError:
            return None
        if not isinstance(slots, list):
            return None
        return sum(bool(slot.get("is_processing")) for slot in slots if isinstance(slot, dict)) + int(
            self.counters().waiting or 0
        )

    def counters(self) -> Counters:
        """From /metrics, where --metrics is on (it is off by default).

        Generated is decode calls × busy slots a call: the predicted-tokens counter moves only as a request ends.
        """
        totals = self._totals()
        calls, busy = totals.get("llamacpp:n_decode_total"), totals.get("llamacpp:n_busy_slots_per_decode")
        return Counters(
            running=totals.get("llamacpp:requests_processing"),
            waiting=totals.get("llamacpp:requests_deferred"),
            generated=None if calls is None or busy is None else calls * busy,
        )

    def optional_fields(self) -> dict[str, Any]:
        """With timings on each event: a running count of tokens, prompt tokens, and the server's prefill time."""
        return super().optional_fields() | {"timings_per_token": True}

    def _meta(self, model: str) -> dict[str, Any]:
        return next((entry.get("meta") or {} for entry in self.listed() if entry["id"] == model), {})

    def _capacity(self, props: dict[str, Any]) -> Capacity:
        """A slot's context is the limit of a request; a unified pool is one slot's context, split ones add up.

        Which of the two it is the server does not tell, and with 4 slots the wrong one is 4 times too much.
        """
        slots = int(props.get("total_slots") or 0) or None
        context = int(props["default_generation_settings"]["n_ctx"])
        unified = one_pool(self._launch_text())
        if unified:
            return Capacity(context, context, slots, "one pool shared by all slots (--kv-unified)")
        if slots == 1 or (slots and unified is False):
            return Capacity(slots * context, context, slots, f"{slots} slots of {context:,} tokens each")
        why = "unknown: slots may share one pool; say facts.launch_command or capacity.kv_tokens"
        return Capacity(None, context, slots, why)

    def _launch_text(self) -> str:
        """How the server was started: variables first, since options go over them."""
        around = os.environ if self.server.launch else {}
        said = [f"{name} {value}" for name, value in around.items() if name.startswith("LLAMA_ARG_")]
        return " ".join([*said, *launching.words_of(self.server)])


def one_pool(command: str) -> bool | None:
    """Whether slots of a server that was started so share one KV pool; None where `command` does not tell.

    llama-server makes one pool by itself where it chooses the number of slots (-np is not given, or negative). Versions
    before that was so had one slot then, for which it is the same.
    """
    words = _WORD.findall(command)
    said: bool | None = None
    chosen: bool | None = None  # whether llama-server chooses the number of slots
    for word, value in pairwise([*words, ""]):
        if word in ("--kv-unified", "-kvu"):
            said = True
        elif word in ("--no-kv-unified", "-no-kvu", "LLAMA_ARG_NO_KV_UNIFIED"):
            said = False
        elif word == "LLAMA_ARG_KV_UNIFIED":
            said = value.lower() in ("1", "on", "true", "enabled")
        elif word in ("-np", "--parallel", "LLAMA_ARG_N_PARALLEL"):
            chosen = value.startswith("-")
        elif word in ("--kv-unified-per-slot", "LLAMA_ARG_KV_UNIFIED_PER_SLOT"):
            return None  # what a slot reports is that limit then, not the pool
    if chosen is None and "speedmatrix.embedded" in words:
        chosen = False
    if chosen is None and any(word.rpartition("/")[2] == "llama-server" for word in words):
        chosen = True
    if said is False and chosen:
        return None  # versions differ in which of the two wins
    return chosen if said is None else said
