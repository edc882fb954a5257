"""What a cell is: its name, its place in the order, and whether it fits the server at all."""

from __future__ import annotations

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
    """What a server can hold; None where it is not known. All in tokens but `max_concurrency` (requests)."""

    kv_tokens: int | None = None
    max_context: int | None = None
    max_concurrency: int | None = None
    kv_source: str = "unknown"


@dataclass(frozen=True)
class Plan:
    """Whether a cell is run, and the numbers that decided. `status` None: run it."""

    status: Literal["over_capacity", "over_context"] | None
    reason: str | None
    kv_needed: int
    max_output: int


def prompt_tokens(context: int, max_context: int | None) -> int:
    """The prompt's length: the context, or one less where it equals the model's limit (one token must follow)."""
    return context - 1 if context == max_context else context


def plan(cell: Cell, max_output: int, capacity: Capacity) -> Plan:
    """Decide whether `cell` fits: METHOD "Plan".

    A prefill cell generates one token and runs one request. KV needed = concurrency × (context + output).
    """
    if cell.phase == "prefill":
        max_output = 1
    prompt = prompt_tokens(cell.context, capacity.max_context)
    request = prompt + max_output
    needed = cell.concurrency * request
    if capacity.max_context is not None and request > capacity.max_context:
        why = f"a request needs {request:,} tokens, the model's limit is {capacity.max_context:,}"
        return Plan("over_context", why, needed, max_output)
    if capacity.kv_tokens is not None and needed > capacity.kv_tokens:
        why = f"needs {needed:,} tokens of KV cache, the server has {capacity.kv_tokens:,}"
        return Plan("over_capacity", why, needed, max_output)
    return Plan(None, None, needed, max_output)
