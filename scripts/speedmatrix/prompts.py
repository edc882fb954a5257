"""Exact, unique, reproducible prompts: as token ids, or as text where a server takes no ids."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from speedmatrix import corpus, sizing

PREFIX_TOKENS = 16  # of every request from the nonce, so that no prefix cache ever holds it
_CLOSED_FROM_TOKENS = 128  # text prompts: three times what the closing words may take
_ONE_WORD = 3  # characters: there are servers that take no empty prompt
_SAMPLE_CHARACTERS = 4096
_MOST_CHARACTERS = 64  # of a token: what gives fewer tokens is no tokenizer
Tokenize = Callable[[str, bool], list[int]]
Prompt = list[int] | str


def draw_nonce() -> str:
    """16 hex digits that no other attempt has."""
    return secrets.token_hex(8)


def sha256(prompt: Prompt) -> str:
    """The prompt's hash as a cell keeps it."""
    return hashlib.sha256(json.dumps(prompt).encode()).hexdigest()


class Prompts(Protocol):
    """The prompts of one cell: `request(i)` gives request i's, `length` tokens long, as exactly as can be known."""

    @property
    def length(self) -> int:
        """Tokens of each prompt that were meant."""

    def request(self, index: int) -> Prompt:
        """The prompt of request `index` (0, 1, 2, …)."""


def draws(nonce: str, index: int) -> list[int]:
    """16 large numbers that depend on the nonce and the request: what its first tokens are chosen by."""
    digest = hashlib.sha512(f"{nonce}/{index}".encode()).digest()
    return [int.from_bytes(digest[i : i + 4]) for i in range(0, 4 * PREFIX_TOKENS, 4)]


@dataclass
class Ids:
    """Prompts as token ids, each exactly `length` long.

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
        return [self.body[draw % len(self.body)] for draw in draws(self.nonce, index)]


@dataclass
class Text:
    """Prompts as text: 16 words from the nonce, the shipped text, and the closing words.

    All before the closing is `characters` long, which makes `length` tokens as something counted them. Prompts too
    short for it have no closing; the shortest have not all of the words.
    """

    length: int
    nonce: str
    body: str
    characters: int

    def request(self, index: int) -> str:
        """Request `index` (0, 1, 2, …)."""
        words = " ".join(corpus.SHORT_WORDS[draw % len(corpus.SHORT_WORDS)] for draw in draws(self.nonce, index))
        closing = corpus.CONTINUE if self.length >= _CLOSED_FROM_TOKENS else ""
        return f"{words}\n\n{self.body}"[: self.characters] + closing


@dataclass
class Shared:
    """One prompt for all requests: that of request 0."""

    one: Prompts

    @property
    def length(self) -> int:
        """Tokens of the prompt."""
        return self.one.length

    def request(self, _index: int) -> Prompt:
        """The prompt."""
        return self.one.request(0)


def build_text(length: int, seed: int, nonce: str, count: Callable[[str], int]) -> Text:
    """Prompts of `length` tokens as `count(prompt)` counts them. Raises sizing.SizeError.

    Each count may be a whole prefill at the server, so its prompts begin unlike any request's.
    """
    tries = iter(range(-1, -1000, -1))

    def made(characters: int) -> Text:
        return Text(length, nonce, corpus.text(seed, characters), characters)

    return made(sizing.fit(length, lambda characters: count(made(characters).request(next(tries))), _ONE_WORD))


def build(length: int, seed: int, nonce: str, tokenize: Tokenize) -> Ids:
    """Prompts of `length` tokens. `tokenize(text, with_special)` is the server's own tokenizer.

    Raises sizing.SizeError where that gives next to no tokens, however long the text.
    """
    opening = tokenize("", True)
    closing = tokenize(corpus.CONTINUE, False)
    wanted = length + 4096  # room for different requests to start at different places
    sample = tokenize(corpus.text(seed, _SAMPLE_CHARACTERS), False)
    if len(sample) * _MOST_CHARACTERS < _SAMPLE_CHARACTERS:
        raise sizing.SizeError(f"{_SAMPLE_CHARACTERS} characters have {len(sample)} tokens by the server's tokenizer")
    characters = _SAMPLE_CHARACTERS * wanted // len(sample)
    body: list[int] = sample
    while len(body) < wanted:
        characters += characters // 8 + 1
        if characters > _MOST_CHARACTERS * wanted:
            raise sizing.SizeError(f"{characters} characters have {len(body)} tokens by the server's tokenizer")
        body = tokenize(corpus.text(seed, characters), False)
    return Ids(length, nonce, opening, body[:wanted], closing)
