"""Which requests a server takes: found out once, with small requests, and recorded in health.json. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
LIMITS = ("max_tokens", "max_completion_tokens")
_MOST_QUESTIONS = 40
_REFUSALS = (400, 404, 405, 415, 422, 501)


class DialectError(Exception):
    """The server takes no form of request that can be measured; the message is one line with its own words."""


@dataclass(frozen=True)
class Dialect:
    """How this server is asked.

    `endpoint` and `prompt` (token ids, or text), the field that limits the output, optional fields that it refuses
    (a field inside another one as `stream_options.continuous_usage_stats`), and what tells how long a prompt is:
    the server's tokenizer, the `tokenizers` library, or the usage of requests tried out.
    """

    endpoint: Literal["completions", "chat"] = "completions"
    prompt: Literal["ids", "text"] = "ids"
    limit_field: str = LIMITS[0]
    left_out: tuple[str, ...] = ()
    sized_by: Literal["server", "tokenizers", "usage"] = "server"

    @property
    def path(self) -> str:
        """Where requests go, below the server's address."""
        return PATHS[self.endpoint]

    def as_json(self) -> dict[str, Any]:
        """For health.json."""
        return asdict(self) | {"left_out": list(self.left_out)}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Dialect:
        """What `as_json` gave."""
        return cls(**told | {"left_out": tuple(told["left_out"])})

    def body(self, model: str, prompt: list[int] | str, max_tokens: int, optional: dict[str, Any]) -> dict[str, Any]:
        """A streaming request. `optional`: fields that the engine would like, of which the refused are left out."""
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
        if self.endpoint == "completions":
            asked = {"prompt": prompt}
        return {
            "model": model,
            **asked,
            self.limit_field: max_tokens,
            "stream": True,
            **_without(optional, self.left_out),
        }


def _without(fields: dict[str, Any], left_out: tuple[str, ...]) -> dict[str, Any]:
    """`fields` less those named; one that becomes empty goes too."""
    kept = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            value = {key: item for key, item in value.items() if f"{name}.{key}" not in left_out}
        if name not in left_out and value != {}:
            kept[name] = value
    return kept


@dataclass(frozen=True)
class Refusal:
    """A server's answer to a request that it does not take."""

    status: int
    message: str


Ask = Callable[[Dialect], Refusal | None]


def find_out(start: Dialect, optional: dict[str, Any], ask: Ask) -> Dialect:
    """The richest dialect that the server takes. `ask` sends a small request in a dialect; None: it was answered.

    What the server's words name is changed first; where they name nothing, one thing after another, and what turns
    out to have been innocent is taken back. Raises DialectError.
    """
    asked = 0

    def refused(dialect: Dialect) -> Refusal | None:
        nonlocal asked
        asked += 1
        if asked > _MOST_QUESTIONS:
            raise DialectError("the server refuses every form of request")
        return ask(dialect)

    dialect = start
    while (refusal := refused(dialect)) is not None:
        following = _changed(dialect, refusal, _names(optional))
        if following is None:
            raise DialectError(f"the server refuses every form of request, at last: {refusal.message}")
        dialect = following
    if dialect == start:
        return dialect
    for poorer in _taken_back(dialect, start):
        if poorer(dialect) != dialect and refused(poorer(dialect)) is None:
            dialect = poorer(dialect)
    return dialect


def _names(optional: dict[str, Any]) -> list[str]:
    """Names of all optional fields, those inside others before them."""
    inner = [f"{name}.{key}" for name, value in optional.items() if isinstance(value, dict) for key in value]
    return inner + list(optional)


def _changed(dialect: Dialect, refusal: Refusal, names: list[str]) -> Dialect | None:
    """The next thing to try after `refusal`; None when nothing is left or it is about something else."""
    if refusal.status not in _REFUSALS:
        return None
    if refusal.status in (404, 405) and dialect.endpoint == "completions":
        return replace(dialect, endpoint="chat", prompt="text")
    said = refusal.message.lower()
    left = [name for name in names if name not in dialect.left_out]
    named = [name for name in left if name.rpartition(".")[2].lower() in said]
    if named:
        return replace(dialect, left_out=(*dialect.left_out, named[0]))
    if dialect.limit_field == LIMITS[0] and LIMITS[1] in said:
        return replace(dialect, limit_field=LIMITS[1])
    if dialect.prompt == "ids":
        return replace(dialect, prompt="text")
    if left:
        return replace(dialect, left_out=(*dialect.left_out, left[0]))
    if dialect.limit_field == LIMITS[0]:
        return replace(dialect, limit_field=LIMITS[1])
    if dialect.endpoint == "completions":
        return replace(dialect, endpoint="chat")
    return None


def _taken_back(dialect: Dialect, start: Dialect) -> list[Callable[[Dialect], Dialect]]:
    """Each single change of `dialect` against `start`, undone: the dearest loss first."""

    def with_field(name: str) -> Callable[[Dialect], Dialect]:
        return lambda d: replace(d, left_out=tuple(other for other in d.left_out if other != name))

    undone: list[Callable[[Dialect], Dialect]] = []
    if dialect.endpoint == "completions":
        undone.append(lambda d: replace(d, prompt=start.prompt))
    undone += [with_field(name) for name in reversed(dialect.left_out)]
    undone.append(lambda d: replace(d, limit_field=start.limit_field))
    return undone
