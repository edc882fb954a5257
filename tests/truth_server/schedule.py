"""The schedule: a queue, prefill and steps of one data-parallel rank; times are absolute."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.truth_server.faults import Faults
from tests.truth_server.speeds import Speeds

CHUNK_TOKENS = 2048
SPIN_S = 0.0015


@dataclass(frozen=True)
class Options:
    """What is programmed beside the speeds. Capacity and `max_running` are each rank's."""

    kv_capacity: int = 900_000
    max_context: int = 262_144
    max_running: int = 10_000
    tokens_per_event: int = 1
    random_tokens: bool = False  # events of 1 to tokens_per_event tokens
    shuffle: bool = False
    prefix_cache: bool = False
    ranks: int = 1


@dataclass
class Sequence:
    """One request inside the server. `send(sequence, is_last)` writes the tokens that it holds."""

    number: int
    prompt: int
    cached: int
    limit: int
    received: float
    send: Callable[[Sequence, bool], None]
    left: int = 0  # prompt tokens still to prefill
    done: int = 0  # tokens generated
    held: int = 0  # tokens generated and not yet sent
    size: int = 1  # tokens of the next event
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def kv_tokens(self) -> int:
        """What it takes of the KV cache; a cached prompt is there already."""
        return self.prompt - self.cached + self.limit


class Rank:
    """One data-parallel engine. `faults` is asked at each step, since they are programmed while it runs."""

    def __init__(self, speeds: Speeds, options: Options, faults: Callable[[], Faults], seed: int = 0) -> None:
        self.speeds, self.options, self.faults = speeds, options, faults
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.arrived = asyncio.Event()
        self.generated = self.prompted = self.preempted = self.gauge = 0
        self.late: list[tuple[float, float]] = []  # (when, by how much in s) of each step
        self.firsts: list[float] = []
        self.random = random.Random(seed)

    @property
    def load(self) -> int:
        """Requests inside."""
        return len(self.waiting) + sum(not one.ended.is_set() for one in self.running)

    def add(self, one: Sequence) -> None:
        """Queue a request."""
        one.size = self._size()
        self.waiting.append(one)
        self.arrived.set()

    def leave(self, one: Sequence) -> None:
        """The client hung up."""
        one.ended.set()
        if one in self.waiting:
            self.waiting.remove(one)

    def _size(self) -> int:
        most = self.options.tokens_per_event
        return self.random.randint(1, most) if self.options.random_tokens else most

    def _admit(self) -> None:
        """Start waiting requests while there is room."""
        while self.waiting and len(self.running) < self.options.max_running:
            used = sum(one.kv_tokens for one in self.running)
            if used + self.waiting[0].kv_tokens > self.options.kv_capacity:
                return
            self.running.append(self.waiting.popleft())
            if len(self.running) == self.faults().crash_at:
                os._exit(3)

    def _plan(self) -> tuple[float, Sequence | None]:
        """(seconds of the next step, the sequence whose chunk it holds)."""
        prefilling = next((one for one in self.running if one.left > 0), None)
        if prefilling is not None:
            return self.speeds.chunk(prefilling.prompt, min(CHUNK_TOKENS, prefilling.left)), prefilling
        context = max(one.prompt for one in self.running)
        return self.speeds.step(context, len(self.running)), None

    async def run(self) -> None:
        """Step until cancelled."""
        at = time.perf_counter()
        while True:
            self.running = [one for one in self.running if not one.ended.is_set()]
            self._admit()
            if not self.running:
                self.arrived.clear()
                await self.arrived.wait()
                at = time.perf_counter()
                continue
            seconds, prefilling = self._plan()
            stepping = [one for one in self.running if one.left == 0]
            at += seconds
            await _until(at)
            self.late.append((at, time.perf_counter() - at))
            self._advance(stepping, prefilling, at)

    def _advance(self, stepping: list[Sequence], prefilling: Sequence | None, at: float) -> None:
        if prefilling is not None:
            chunk = min(CHUNK_TOKENS, prefilling.left)
            prefilling.left -= chunk
            self.prompted += chunk
            if prefilling.left == 0:  # the chunk that ends a prompt gives its first token
                self.firsts.append(at - prefilling.received)
                stepping = [*stepping, prefilling]
        if self.options.shuffle:
            self.random.shuffle(stepping)
        for one in stepping:
            if not one.ended.is_set():
                self._give(one)
        self.preempted += self.faults().preempting
        self.gauge = sum(not one.ended.is_set() for one in self.running)

    def _give(self, one: Sequence) -> None:
        one.done += 1
        one.held += 1
        self.generated += 1
        last = one.done >= one.limit
        if one.held >= one.size or last or one.done == 1:
            one.send(one, last)
            one.held, one.size = 0, self._size()
        if last:
            one.ended.set()


async def _until(at: float) -> None:
    """Sleep nearly so long, then spin: a sleep alone is late by up to a millisecond."""
    while (left := at - time.perf_counter()) > 0:
        await asyncio.sleep(left - SPIN_S if left > SPIN_S else 0)
