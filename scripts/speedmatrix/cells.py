"""What a cell is: its name, its place in the order, and whether it fits the server at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Phase = Literal["prefill", "decode"]
Status = Literal["valid", "limited", "over_capacity", "over_context", "failed"]


def size_name(tokens: int) -> str:
    """`8192` → `8K`: a context's short name, exact (sizes that are no multiple of 1024 stay in digits)."""
    return f"{tokens // 1024}K" if tokens and tokens % 1024 == 0 else str(tokens)


def parse_size(size: int | str) -> int:
    """`"8K"` or 8192 → 8192 tokens. ValueError for anything else than a positive integer or `<n>K`."""
    text = str(size)
    digits, unit = (text[:-1], 1024) if text.endswith("K") else (text, 1)
    if not (digits.isascii() and digits.isdigit()) or int(digits) == 0:
        raise ValueError(f"{size!r} is no size: write a whole number of tokens, or one with K (8K = 8192)")
    return int(digits) * unit


@dataclass(frozen=True, order=True)
class Cell:
    """One measurement. `context` in tokens, `concurrency` in lanes, `repeat` counted from 1."""

    server: str
    phase: Phase
    context: int
    concurrency: int = 1
    repeat: int = 1

    @property
    def name(self) -> str:
        """The cell's file name without its ending: `prefill-8K`, `decode-8K-x16`, `decode-8K-x16.r2`."""
        if self.phase == "prefill":
            return f"prefill-{size_name(self.context)}"
        suffix = f".r{self.repeat}" if self.repeat > 1 else ""
        return f"decode-{size_name(self.context)}-x{self.concurrency}{suffix}"

    @property
    def label(self) -> str:
        """The cell in words for a progress line."""
        return self.name.replace("-", " ").replace(".r", " repeat ")

    @property
    def path(self) -> str:
        """Where the cell's JSON lies, below the working directory."""
        return f"results/cells/{self.server}/{self.name}.json"


@dataclass(frozen=True)
class Capacity:
    """What a server can hold; None where it is not known. All in tokens but `max_concurrency` (requests).

    `kv_tokens` is the sum over `ranks` data-parallel engines, each of which has its even part.
    """

    kv_tokens: int | None = None
    max_context: int | None = None
    max_concurrency: int | None = None
    kv_source: str = "unknown"
    ranks: int = 1


@dataclass(frozen=True)
class Plan:
    """Whether a cell is run, and the numbers that decided, all in tokens. `status` None: run it.

    `kv_needed` and `kv_has` are of the whole server, or of its fullest rank where that one decided.
    """

    status: Literal["over_capacity", "over_context"] | None
    reason: str | None
    request: int
    kv_needed: int
    kv_has: int | None
    max_output: int


def prompt_tokens(context: int, max_context: int | None) -> int:
    """The prompt's length: the context, or one less where it equals the model's limit (one token must follow)."""
    return context - 1 if context == max_context else context


def plan(cell: Cell, max_output: int, capacity: Capacity, shared: bool = False) -> Plan:
    """Decide whether `cell` fits: METHOD "Plan".

    A prefill cell generates one token and runs one request. KV needed = concurrency × (context + output); with one
    `shared` prompt, context + concurrency × output. Of data-parallel ranks the fullest must fit too.
    """
    if cell.phase == "prefill":
        max_output, shared = 1, False
    prompt = prompt_tokens(cell.context, capacity.max_context)
    request, has = prompt + max_output, capacity.kv_tokens
    needed = _kv_needed(cell.concurrency, prompt, max_output, shared)
    if capacity.max_context is not None and request > capacity.max_context:
        why = f"a request needs {request:,} tokens, the model's limit is {capacity.max_context:,}"
        return Plan("over_context", why, request, needed, has, max_output)
    if has is not None and needed > has:
        why = f"needs {needed:,} tokens of KV cache, the server has {has:,}"
        return Plan("over_capacity", why, request, needed, has, max_output)
    if has is not None and capacity.ranks > 1:
        fullest, rank_has = math.ceil(cell.concurrency / capacity.ranks), has // capacity.ranks
        rank_needs = _kv_needed(fullest, prompt, max_output, shared)
        if rank_needs > rank_has:
            share = f"{fullest} requests on one of {capacity.ranks} ranks"
            why = f"{share} need {rank_needs:,} tokens of KV cache, it has {rank_has:,}"
            return Plan("over_capacity", why, request, rank_needs, rank_has, max_output)
    return Plan(None, None, request, needed, has, max_output)


def _kv_needed(requests: int, prompt: int, max_output: int, shared: bool) -> int:
    return (prompt if shared else requests * prompt) + requests * max_output
