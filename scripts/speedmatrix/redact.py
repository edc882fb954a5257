"""Hides secrets, home directory and credentials before anything is stored or shown. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

MARK = "<redacted>"
_SECRET_SEGMENTS = frozenset(
    [
        "key",
        "token",
        "secret",
        "password",
        "passwd",
        "passphrase",
        "pwd",
        "credential",
        "credentials",
        "auth",
        "authorization",
        "apikey",
        "bearer",
    ]
)
_NOT_SECRET = frozenset(["sort-key", "key-value", "pwd", "oldpwd", "ssh_auth_sock"])
# A name and what leads to its value: `--api-key `, `--api-key=`, `HF_TOKEN=`, `"api_key": `. Values are matched apart,
# so that a name that is no secret takes nothing with it (`--flag --api-key x`, `sh -c 'serve --api-key x'`).
_NAME = re.compile(
    r"""(?<![\w-]) (?: (?P<option> --?[A-Za-z][\w.-]* ) (?: = | \s+ )
                    | (?P<variable> [A-Za-z_]\w* ) (?: = | ["']\s*:\s* ) )""",
    re.VERBOSE,
)
_VALUE = re.compile(r"'[^']*'|\"[^\"]*\"|[^\s'\"]+")
_HEADER = re.compile(
    r"(?P<head>[\"']?(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)?\s*)(?P<value>[^\s\"',;]+)",
    re.I,
)
_BEARER = re.compile(r"(?P<head>\bbearer\s+)(?P<value>[\w.~+/=-]{6,})", re.I)
_URL_USER = re.compile(r"(?P<head>\b[a-z][a-z0-9+.-]*://)(?P<value>[^/\s@'\"]+)@", re.I)
_KNOWN_SHAPES = re.compile(r"\b(?:sk-[\w-]{8,}|hf_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{8,})")


def is_secret_name(name: str) -> bool:
    """Whether an option or variable of this name holds a secret: by whole segments of the name.

    HF_TOKEN and --api-key do; MAX_TOKENS, --tokenizer and --max-num-batched-tokens do not.
    """
    plain = name.lstrip("-")
    if plain.lower() in _NOT_SECRET:
        return False
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", plain).lower()
    return any(segment in _SECRET_SEGMENTS for segment in re.split(r"[^a-z0-9]+", words))


def redact_command(command: str | Iterable[str]) -> str:
    """A command as one printable shell line, without secrets and with the home directory as $HOME."""
    line = command if isinstance(command, str) else shlex.join(command)
    return redact_text(line)


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without the `secrets` that are known by value, and without what looks like one; the rest as it was."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= 4:
            text = text.replace(secret, MARK)
    text = _hide_named(text)
    text = _HEADER.sub(rf"\g<head>{MARK}", text)
    text = _BEARER.sub(rf"\g<head>{MARK}", text)
    text = _URL_USER.sub(rf"\g<head>{MARK}@", text)
    text = _KNOWN_SHAPES.sub(MARK, text)
    return _without_home(text)


def _hide_named(text: str) -> str:
    """`text` with the value of every secret-named option, variable or JSON key hidden."""
    parts, place = [], 0
    while match := _NAME.search(text, place):
        parts.append(text[place : match.end()])
        place = match.end()
        value = _VALUE.match(text, place)
        is_flag = value is not None and text[place - 1].isspace() and value[0].startswith("-")
        if value and not is_flag and is_secret_name(match["option"] or match["variable"]):
            parts.append(MARK)
            place = value.end()
    return "".join(parts) + text[place:]


def _without_home(text: str) -> str:
    home = str(Path.home())
    return re.sub(rf"{re.escape(home)}(?=/|$|[\s'\"])", "$HOME", text) if len(home) > 1 else text
