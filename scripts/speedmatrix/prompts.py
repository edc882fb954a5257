"""Exact, unique, reproducible prompts, as token ids."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from speedmatrix import corpus

PREFIX_TOKENS = 16  # of every request from the nonce, so that no prefix cache ever holds it
_SAMPLE_CHARACTERS = 4096

Tokenize = Callable[[str, bool], list[int]]


def draw_nonce() -> str:
    """16 hex digits that no other attempt has."""
    return secrets.token_hex(8)


def sha256(tokens: list[int]) -> str:
    """The prompt's hash as a cell keeps it."""
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()


@dataclass(frozen=True)
class Prompts:
    """The prompts of one cell: `request(i)` gives request i's token ids, each exactly `length` long.

    A prompt is: the tokenizer's opening (BOS), 16 tokens from the nonce, the shipped text from a place that
    depends on seed and request, and the closing words that ask for new text. `length` below what opening and
    closing need is met by leaving out from the end.
    """

    length: int
    nonce: str
    opening: list[int]
    body: list[int]
    closing: list[int]

    def request(self, index: int) -> list[int]:
        """Token ids of request `index` (0, 1, 2, …)."""
        fixed = len(self.opening) + PREFIX_TOKENS
        closing = self.closing if self.length >= fixed + 2 * len(self.closing) else []
        middle = max(0, self.length - fixed - len(closing))
        start = index * 997 % max(1, len(self.body) - middle + 1)  # a prime step: neighbours share no alignment
        tokens = self.opening + self._prefix(index) + self.body[start : start + middle] + closing
        return tokens[: self.length]

    def _prefix(self, index: int) -> list[int]:
        """16 tokens of the text, drawn by the nonce and the request's number."""
        digest = hashlib.sha512(f"{self.nonce}/{index}".encode()).digest()
        draws = (int.from_bytes(digest[i : i + 4]) for i in range(0, 4 * PREFIX_TOKENS, 4))
        return [self.body[draw % len(self.body)] for draw in draws]


def build(length: int, seed: int, nonce: str, tokenize: Tokenize) -> Prompts:
    """Prompts of `length` tokens. `tokenize(text, with_special)` is the server's own tokenizer."""
    opening = tokenize("", True)
    closing = tokenize(corpus.CONTINUE, False)
    wanted = length + 4096  # room for different requests to start at different places
    sample = tokenize(corpus.text(seed, _SAMPLE_CHARACTERS), False)
    characters = _SAMPLE_CHARACTERS * wanted // len(sample)
    body: list[int] = sample
    while len(body) < wanted:
        characters += characters // 8 + 1
        body = tokenize(corpus.text(seed, characters), False)
    return Prompts(length, nonce, opening, body[:wanted], closing)
