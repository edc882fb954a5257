"""Who counts a prompt's tokens: the server's tokenizer, the `tokenizers` library, or the usage of trial requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from speedmatrix import dialect, prompts
from speedmatrix.dialect import Dialect
from speedmatrix.engines import Engine, EngineError

_GREETING = "Tell me something new."


def find_dialect(engine: Engine, extra: dict[str, Any]) -> Dialect:
    """Which requests the server takes and what counts their tokens; the server completes its first request with it.

    `extra`: the config's own fields of a request. Raises EngineError.
    """
    start = _start(engine)

    def ask(tried: Dialect) -> dialect.Refusal | None:
        prompt = tokenize(engine, tried)(_GREETING, True) if tried.prompt == "ids" else _GREETING
        return engine.ask(tried, prompt, extra)

    try:
        return dialect.find_out(start, engine.optional_fields(), ask)
    except dialect.DialectError as error:
        raise EngineError(str(error)) from error


def _start(engine: Engine) -> Dialect:
    try:
        engine.tokenize(_GREETING, True)
    except EngineError:
        sized_by = "tokenizers" if engine.server.tokenizer else "usage"
        return Dialect(prompt="ids" if engine.server.tokenizer else "text", sized_by=sized_by)  # type: ignore[arg-type]
    return Dialect()


def tokenize(engine: Engine, asked: Dialect) -> prompts.Tokenize:
    """Text → token ids, by the server or by the library with the tokenizer that the config names."""
    return engine.tokenize if asked.sized_by == "server" else _from_library(str(engine.server.tokenizer))


@cache
def _from_library(path: str) -> prompts.Tokenize:
    import tokenizers  # most servers tokenize for themselves

    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    try:
        library = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise EngineError(f"{file} is no tokenizer that can be read: {error}") from None
    return lambda text, with_special: list(library.encode(text, add_special_tokens=with_special).ids)


def counter(engine: Engine, extra: dict[str, Any]) -> Callable[[str], int]:
    """How many tokens a text prompt has at the server, template included. Raises EngineError where nothing tells.

    By the tokenizer plus what the server adds to a short prompt; without a tokenizer by a request of one token each.
    """
    asked = engine.dialect
    if asked.sized_by == "usage":
        return lambda text: _told(engine.prompt_tokens(text, extra), engine)
    ids = tokenize(engine, asked)
    told = engine.prompt_tokens(_GREETING, extra)
    added = 0 if told is None else told - len(ids(_GREETING, True))
    return lambda text: added + len(ids(text, True))


def _told(tokens: int | None, engine: Engine) -> int:
    if tokens is None:
        name = engine.server.name
        raise EngineError(f"nothing tells how long a prompt is: name a tokenizer in servers.{name}.tokenizer")
    return tokens


def build(engine: Engine, length: int, seed: int, nonce: str, extra: dict[str, Any]) -> prompts.Prompts:
    """Prompts of `length` tokens in the form that the server takes. Raises EngineError and sizing.SizeError."""
    if engine.dialect.prompt == "ids":
        return prompts.build(length, seed, nonce, tokenize(engine, engine.dialect))
    return prompts.build_text(length, seed, nonce, counter(engine, extra))
