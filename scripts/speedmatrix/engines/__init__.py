"""What differs between inference engines: facts, capacity, counters, request fields."""

from __future__ import annotations

from speedmatrix.config import Server
from speedmatrix.engines.base import Engine, EngineError, Facts
from speedmatrix.engines.llamacpp import LlamaCpp
from speedmatrix.engines.vllm import Vllm

ENGINES: dict[str, type[Engine]] = {"llama.cpp": LlamaCpp, "vllm": Vllm}

__all__ = ["ENGINES", "Engine", "EngineError", "Facts", "engine_for"]


def engine_for(server: Server) -> Engine:
    """The adapter that the config's `engine:` names."""
    return ENGINES[server.engine](server)
