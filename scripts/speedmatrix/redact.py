"""Hides secrets, and shortens home directory and host name, before anything is stored or shown."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from speedmatrix import known
from speedmatrix.known import MARK

_SECRET_SEGMENT = re.compile(
    r"keys?|auth|authorization|bearer|cred(?:ential)?s?|pwd?|jwt|hft|cookies?|sig|signature|webhook"
    r"|.*(?:apikeys?|token|secrets?|passwords?|passwd|passphrase)"
)
_SECRET_LAST_SEGMENT = re.compile(r"pat|(?!bypass|compass).*pass")
_SECRET_TOKENS = re.compile(r".*\b(?:api|access|auth|bearer|hf|refresh)-tokens")
_NOT_SECRET = frozenset(["sort-key", "key-value", "pwd", "oldpwd", "ssh_auth_sock"])
# What says something about a key or a token, and holds none.
_ABOUT_SECRETS = re.compile(
    r".*-(?:mode|d?type|limit|budget|counts?|size|len|length|dim|heads|bits|rate|ratio|ttl|policy|error|token-ids?)|token-ids?"
)
# Options of a secret's name that often stand alone: what follows is their value only if it is no option.
_FLAG = re.compile(r"--?(?:auth|(?:no|use|with|enable|disable|require)-.*)")
_API_KEY = re.compile(r"--api-keys?")
_USER, _LOGIN = re.compile(r"-u|--(?:proxy-)?user"), re.compile(r"[^\s:/@]+:(?!\d+$|[/\s]).+", re.S)

# Shell words, quotes and all. A quote that is never closed runs to the end, so that nothing behind it is shown; an
# escaped one opens a word of the line inside; a backslash at a line's end stands between words.
_QUOTED = re.compile(
    r"""(')([^']*)('|\Z) | (")((?:\\.|[^"\\])*)("|\Z) | (\\")((?:(?!\\").)*)(\\") | \\.""", re.VERBOSE | re.S
)
_WORD = re.compile(rf"(?!\\\n)(?: {_QUOTED.pattern} | [$<>]\([^()]*\) | `[^`]*` | [^\s'\"\\] )+", re.VERBOSE | re.S)
_OPTION, _VARIABLE, _HEADER_NAME = r"--?[A-Za-z][\w.-]*", r"[A-Za-z_]\w*", r"[A-Za-z][\w-]*"
_ASSIGNED = re.compile(rf"(?<![\w-])({_OPTION}|{_VARIABLE})(?:\[\w*\])?\+?=")
_DEFAULT = re.compile(rf"(\$\{{({_VARIABLE}):?[-=+?])([^{{}}]*)(?=\}})")
_HEADER = re.compile(rf"(?:-H|--header=)?({_HEADER_NAME})\s*:\s*(?:(?:bearer|basic|token)\s+)?(?=\S)", re.I)

# The same in text that is no command, where quotes may be apostrophes: names and what leads to their values.
_NAME = re.compile(
    rf"""(?<![\w-])(?:
        (?P<option>{_OPTION})(?: = | (?:\\\n|\s)+ | \\*["']\s*,\s* )
      | (?P<variable>{_VARIABLE})(?: (?:\[\w*\])?\+?= | \\*["']\]?\s*[:=]\s* )
      | (?P<argument>[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\\*["']\s*,\s*
    )""",
    re.VERBOSE,
)
_VALUE = re.compile(r"'[^']*'|\\*\"[^\"]*\"|\[[^\]]*\]|[^\s'\"]+")
_HEADER_IN_TEXT = re.compile(
    r"(?<![\w.-])(?P<head>(?P<name>authorization|[A-Za-z]+(?:-[A-Za-z]+)+)[\"']?\s*[:=]\s*[\"']?"
    r"(?:(?:bearer|basic|token)\s+)?)(?P<value>[^\s\"',;]+)",
    re.I,
)
_COOKIE = re.compile(r"(?P<head>\b(?P<name>(?:set-)?cookie)\s*:\s*)(?P<value>[^\"'\n]+)", re.I)
# YAML: in braces anything that names a secret; on a line of its own what can't be the beginning of a sentence.
_FLOW = re.compile(r"(?P<head>[{,]\s*(?P<name>[A-Za-z][\w-]*)\s*:\s+)(?P<value>'[^']*'|\"[^\"]*\"|[^\s,'\"{}]+)")
_BLOCK = re.compile(
    r"^(?P<head>[ \t]*(?:-[ \t]+)?(?P<name>[A-Za-z]+[_-][\w-]+|password|secret)[ \t]*:[ \t]+)(?P<value>\S+)[ \t]*$",
    re.M,
)
_BEARER = re.compile(r"(?P<head>\bbearer\s+)(?P<value>[\w.~+/=-]{6,})", re.I)
# A password may hold / and @, so that with a colon everything to the last @ belongs to it.
_URL_USER = re.compile(
    r"(?P<head>\b[a-z][a-z0-9+.-]{0,20}://)(?:[^/\s@'\":]{0,256}:[^\s'\"]{0,4096}|[^/\s@'\"]+)@", re.I
)
_READ_FROM_ENVIRONMENT = re.compile(r"\{env:\w+\}")
_REFERENCE = re.compile(r"\$|`|(\{env:\w+\}|\{python\})$")  # a shell's, or ours
_SHORTEST_LITERAL = 6  # `EMPTY`, `none` and `true` stand where a key could, and everywhere else
_KNOWN_SHAPES = re.compile(
    r"\b(?:(?:sk|nvapi|glpat|xox[abp])-[\w-]{8,}|hf_[A-Za-z0-9]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}"
    r"|AKIA[A-Z0-9]{16}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)


def is_secret_name(name: str) -> bool:
    """Whether an option, variable or header of this name holds a secret: by whole segments of the name.

    HF_TOKEN, --api-key and PGPASSWORD do; MAX_TOKENS, --tokenizer, --pass-through, --auth-mode and
    --max-num-batched-tokens do not.
    """
    plain = name.lstrip("-")
    if plain.lower() in _NOT_SECRET:
        return False
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", plain).lower()
    segments = [segment for segment in re.split(r"[^a-z0-9]+", words) if segment]
    name = "-".join(segments)
    if not segments or _ABOUT_SECRETS.fullmatch(name):
        return False
    holds = any(map(_SECRET_SEGMENT.fullmatch, segments)) or _SECRET_LAST_SEGMENT.fullmatch(segments[-1])
    return bool(holds or _SECRET_TOKENS.fullmatch(name))


def redact_command(command: str | Iterable[str]) -> str:
    """A command as one printable shell line, without secrets and with the home directory as $HOME."""
    if isinstance(command, str):
        return _by_shape(known.hide(command))
    # Before the list is joined: its elements tell exactly where a value begins and ends.
    return _by_shape(known.hide(" ".join(map(_quoted, _hide_arguments(list(command), _argument)))))


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without the `secrets` and what is known by value, and without what looks like one; the rest as it was."""
    values = list(secrets)
    return _by_shape(known.hide_parts(known.hide(text, values), values))


def _by_shape(text: str) -> str:
    """`text` without what looks like a secret, and shortened."""
    text = _hide_named(_line(text))
    for names in (_HEADER_IN_TEXT, _COOKIE, _FLOW, _BLOCK):
        text = names.sub(_hidden_if_named, text)
    text = _BEARER.sub(rf"\g<head>{MARK}", text)
    text = _URL_USER.sub(rf"\g<head>{MARK}@", text)
    text = _KNOWN_SHAPES.sub(MARK, text)
    return _shortened(text)


def redact_tree(value: Any, name: str = "") -> Any:
    """A config's value without secrets: by its key's name, in a list of arguments, and in each text."""
    if isinstance(value, Mapping):
        return {key: redact_tree(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        hidden = _hide_arguments([str(item) for item in value], _argument)  # a command's numbers are words, too
        return [redact_tree(item if str(item) == word else word) for item, word in zip(value, hidden, strict=True)]
    if not isinstance(value, str):
        return value
    only_named = _names_a_variable(name) or _READ_FROM_ENVIRONMENT.fullmatch(value)
    return MARK if is_secret_name(name) and value and not only_named else redact_text(value)


def secrets_in(value: Any, shown: Any = None) -> set[str]:
    """The values that `redact_tree` hides in a config's value, for what repeats them elsewhere; no mere references."""
    shown = redact_tree(value) if shown is None else shown
    if isinstance(value, Mapping):
        return {secret for key in value for secret in secrets_in(value[key], shown[key])}
    if isinstance(value, list):
        return {secret for item, word in zip(value, shown, strict=True) for secret in secrets_in(item, word)}
    if not isinstance(value, str) or MARK not in shown:
        return set()
    around = "(.+?)".join(map(re.escape, shown.split(MARK)))
    found = re.fullmatch(around, _shortened(value), re.S)
    plain = {part.strip("'\"\\;&|()") for part in found.groups()} if found else {value}
    if "://" in shown:  # of user:password the password alone, too
        plain |= {part.partition(":")[2] for part in plain}
    return {part for part in plain if len(part) >= _SHORTEST_LITERAL and not _REFERENCE.match(part)}


def _line(text: str) -> str:
    """A shell line with its secrets hidden, everything else as it was."""
    text = _DEFAULT.sub(lambda default: default[1] + (MARK if is_secret_name(default[2]) else default[3]), text)
    shown, place = [], 0
    words = list(_WORD.finditer(text))
    for word, hidden in zip(words, _hide_arguments([word[0] for word in words], _word), strict=True):
        shown += [text[place : word.start()], hidden]
        place = word.end()
    return "".join(shown) + text[place:]


def _hide_arguments(words: list[str], within: Callable[[str, bool], str]) -> list[str]:
    """`words` with each that is a secret option's value hidden, the others by `within(word, is it a shell's line)`."""
    plain = [re.sub(r"\\\n|['\"\\]", "", word) for word in words]
    shown, more = [], False
    for place, word in enumerate(words):
        before = plain[max(0, place - 3) : place]
        option = before[-1] if before else ""
        # vLLM takes several keys after one --api-key.
        more = bool(_API_KEY.fullmatch(option)) or (more and not re.match(r"-|[|&;<>()]", plain[place]))
        is_line = bool(re.fullmatch(r"-\w*c", option))
        shown.append(MARK if more or _is_secret_value(plain[place], before) else within(word, is_line))
    return shown


def _is_secret_value(word: str, before: list[str]) -> bool:
    """Whether the `word` is a secret by the words `before` it, without quotes; the last is nearest."""
    match before:
        case [*_, option] if re.fullmatch(_OPTION, option) and is_secret_name(option):
            return not (word.startswith("-") and _FLAG.fullmatch(option))
        case [*_, option] if _USER.fullmatch(option):
            return bool(_LOGIN.fullmatch(word))
        case [*_, "sshpass", "-p"] | [*_, "sshpass"] if not re.match(r"-[^p]|-p$", word):
            return before[-1] == "-p" or word.startswith("-p")
        case [*_, "setenv", name] | ["set", _, name] if re.fullmatch(_VARIABLE, name):
            return is_secret_name(name)
    return False


def _argument(text: str, is_line: bool = False) -> str:
    """An argument as its program gets it, with its secrets hidden."""
    return _line(text) if is_line else _named(text) or _line(text)


def _word(word: str, is_line: bool = False) -> str:
    """A word of a shell line, quotes and all, with its secrets hidden."""

    def inside(quoted: re.Match[str]) -> str:
        opening, argument, closing = [part for part in quoted.groups() if part is not None] or ["", "", quoted[0]]
        return opening + _argument(argument, is_line) + closing

    return _named(word) or _QUOTED.sub(inside, word)


def _named(text: str) -> str | None:
    """`text` with all hidden that follows a secret name at its start: `--key=…`, `--env=KEY=…`, `X-Api-Key: …`."""
    header = _HEADER.match(text)
    if header and is_secret_name(header[1]):
        return header[0] + MARK
    for match in _ASSIGNED.finditer(text):
        if re.search(r"[\s'\"]", text[: match.start()]):
            break
        value = text[match.end() :]
        if value and (is_secret_name(match[1]) or (_USER.fullmatch(match[1]) and _LOGIN.fullmatch(value))):
            return text[: match.end()] + MARK
    return None


def _quoted(argument: str) -> str:
    """The argument as a shell needs it, the mark itself unquoted where nothing else needs quotes."""
    bare = argument.replace(MARK, "x")
    return argument if shlex.quote(bare) == bare else shlex.quote(argument)


def _hide_named(text: str) -> str:
    """`text` with the value of every secret-named option, variable or JSON key hidden."""
    parts, place = [], 0
    while match := _NAME.search(text, place):
        parts.append(text[place : match.end()])
        place = match.end()
        value = _VALUE.match(text, place)
        is_flag = value is not None and text[place - 1].isspace() and value[0].startswith("-")
        if value and not is_flag and is_secret_name(match["option"] or match["variable"] or match["argument"]):
            parts.append(MARK)
            place = value.end()
    return "".join(parts) + text[place:]


def _hidden_if_named(match: re.Match[str]) -> str:
    hides = is_secret_name(match["name"]) and not _names_a_variable(match["name"])
    return match["head"] + MARK if hides else match[0]


def _names_a_variable(name: str) -> bool:
    """Whether what stands at `name` is the name of a variable that holds a secret: api_key_env."""
    return name.endswith("_env")


def _shortened(text: str) -> str:
    """`text` with $HOME for the home directory and $HOST for this machine's name, where that is long enough to tell."""
    home, host = str(Path.home()), platform.node()
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?=/|$|[\s'\"])", "$HOME", text)
    if len(host) > 2 and host != "localhost":
        text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "$HOST", text)
    return text
