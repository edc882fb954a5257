"""How a server was started: as the config says, as its own process does, or as is stated."""

from __future__ import annotations

import contextlib
import shlex
from functools import cache
from urllib.parse import urlsplit

import psutil

from speedmatrix import hosts, known, listeners, redact
from speedmatrix.config import Server


def command_of(server: Server) -> tuple[str, ...] | str | None:
    """The command with all that is in it, secrets too: never to be stored. None where nothing tells it."""
    if server.launch is not None:
        return server.launch.command
    stated = server.facts.get("launch_command")
    return str(stated) if stated else _of_listener(server.url)


def shown(server: Server) -> str | None:
    """The command as one line that may be stored and shown."""
    command = command_of(server)
    if command is None:
        return None
    assigned = [f"{name}={value}" for name, value in server.launch.env.items()] if server.launch else []
    if isinstance(command, str):
        return redact.redact_command(" ".join([*assigned, command.replace("{python}", "python")]))
    arguments = [argument.replace("{python}", "python") for argument in command]
    return redact.redact_command([*(["env", *assigned] if assigned else []), *arguments])


def words_of(server: Server) -> list[str]:
    """The words of everything that tells how the server was started, what the config launches last.

    A launch may be a script that says nothing; its process, or what is stated, says more.
    """
    words = list(_of_listener(server.url) or ())
    if stated := server.facts.get("launch_command"):
        words += _split(str(stated))
    if server.launch is not None:
        command = server.launch.command
        words += [f"{name}={value}" for name, value in server.launch.env.items()]
        words += _split(command) if isinstance(command, str) else command
    return words


def _split(command: str) -> list[str]:
    """A shell's words: `;`, `&&` and the like end one even where no blank does."""
    try:
        words = shlex.shlex(command, posix=True, punctuation_chars=True)
        words.commenters, words.whitespace_split = "", True
        return list(words)
    except ValueError:  # a quote that never closes
        return command.split()


def option(words: list[str], *names: str) -> str | None:
    """The value of the last option or variable of these names: `--name value`, `--name=value`; '' for a flag alone.

    `--a_name` is `--a-name`, as engines take it. A value that a shell has yet to fill in (`$TP`) tells nothing.
    """
    found = None
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
        if name in names:
            following = words[place + 1] if place + 1 < len(words) else ""
            said = value if equals else "" if following.startswith("-") else following
            found = found if "$" in said else said
    return found


def switch(words: list[str], name: str) -> bool | None:
    """Whether `--name` or `--no-name` was said last; None where neither was."""
    said = [word.replace("_", "-") for word in words]
    last = next((word for word in reversed(said) if word in (f"--{name}", f"--no-{name}")), None)
    return None if last is None else last == f"--{name}"


@cache
def _of_listener(url: str) -> tuple[str, ...] | None:
    """The command line of the engine that listens on the address's port, where that is on this host."""
    if not hosts.is_this_host(urlsplit(url).hostname or ""):
        return None
    with contextlib.suppress(psutil.Error, OSError):
        process = listeners.listening(hosts.port_of(url))
        engine = process and listeners.engine_above(process)
        if engine is not None:
            command = engine.cmdline()
            known.know(redact.secrets_in(command))
            return tuple(command)
    return None
