"""What differs between inference engines: facts, capacity, counters, request fields."""

from __future__ import annotations

from speedmatrix.config import Server
from speedmatrix.dialect import Dialect
from speedmatrix.engines.base import Engine, Facts
from speedmatrix.engines.counters import Counters
from speedmatrix.engines.http import EngineError
from speedmatrix.engines.llamacpp import LlamaCpp
from speedmatrix.engines.openai import OpenAI
from speedmatrix.engines.sglang import SGLang
from speedmatrix.engines.vllm import Vllm

ENGINES: dict[str, type[Engine]] = {"llama.cpp": LlamaCpp, "openai": OpenAI, "sglang": SGLang, "vllm": Vllm}

# What only this engine's server has; where several have it, the first counts.
_SIGNATURES = {"llama.cpp": ["/props"], "sglang": ["/server_info", "/get_server_info"], "vllm": ["/version"]}

__all__ = ["ENGINES", "Counters", "Engine", "EngineError", "Facts", "engine_for", "recognised"]


def engine_for(server: Server, dialect: Dialect | None = None) -> Engine:
    """The adapter that the config's `engine:` names, asking in `dialect`."""
    return ENGINES[server.engine](server, dialect)


def recognised(engine: Engine) -> str | None:
    """The engine that the server looks like; None for none that is known."""
    return next((name for name, paths in _SIGNATURES.items() if any(map(engine.answers, paths))), None)
