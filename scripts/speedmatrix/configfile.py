"""The config's file: YAML in, checked against its schema with one line an error, defaults filled in."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import yaml

from speedmatrix import redact

SCHEMAS = Path(__file__).parents[2] / "config" / "schemas"
_MAX_DEPTH = 20


def whole_patterns(validator: Any) -> Any:
    """`validator` in which `$` means the text's end alone: Python's lets a line's end follow, in a file's name too."""

    def pattern(_validator: Any, wanted: str, instance: Any, _schema: Any) -> Iterator[jsonschema.ValidationError]:
        if isinstance(instance, str) and not re.search(re.sub(r"\$$", r"\\Z", wanted), instance):
            yield jsonschema.ValidationError(f"{instance!r} does not match {wanted!r}")

    return jsonschema.validators.extend(validator, {"pattern": pattern})  # type: ignore[no-untyped-call]


# JSON Schema takes 512.0 for an integer; a number of tokens or of lanes that is written so is refused instead.
_Validator = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    whole_patterns(jsonschema.Draft202012Validator),
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    ),
)


class ConfigError(Exception):
    """The config is wrong; the message is one line: key, what is wrong, what is allowed."""


def load(path: Path) -> dict[str, Any]:
    """The mapping of a YAML file. Raises ConfigError with one line."""
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is no UTF-8; allowed: YAML in UTF-8") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: 2026-13-45, which looks like a date
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a mapping with the key `servers` is expected")
    return raw


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a key written twice is an error instead of the last one winning in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {str(key) for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.YAMLError(f"the key {sorted(twice)[0]!r} stands twice, line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`, mapping by mapping."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def refuse_odd(value: Any, *place: str) -> None:
    """Raise ConfigError for what YAML can hold and JSON can't: such a value would only be noticed in mid-sweep."""
    where = ".".join(place) or "config"
    if isinstance(value, Mapping) and len(place) < _MAX_DEPTH:
        for key, item in value.items():
            if not isinstance(key, str):
                raise ConfigError(
                    f"{where}: the key {key!r} is no text; allowed: text, in quotes where needed ('{key}')"
                )
            refuse_odd(item, *place, key)
    elif isinstance(value, list) and len(place) < _MAX_DEPTH:
        for index, item in enumerate(value):
            refuse_odd(item, *place, str(index))
    elif isinstance(value, Mapping | list):
        raise ConfigError(f"{'.'.join(place[:3])}: nested too deep; allowed: {_MAX_DEPTH} levels")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: {value} can't be used; allowed: finite numbers")
    elif not (value is None or isinstance(value, str | int | float)):
        raise ConfigError(f"{where}: a {type(value).__name__} can't be used; allowed: texts (in quotes) and numbers")


def typed(value: Any) -> Any:
    """`value` with each text that is a YAML number, boolean or null as that: `--config` hands over text alone."""
    if isinstance(value, Mapping):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    if not isinstance(value, str):
        return value
    try:
        read = yaml.safe_load(value)
    except yaml.YAMLError:
        return value
    return read if read is None or isinstance(read, bool | int | float) else value


def checked(raw: dict[str, Any]) -> dict[str, Any]:
    """`raw` with the schema's defaults filled in. Raises ConfigError for the first thing that is wrong."""
    schema = json.loads((SCHEMAS / "config.schema.json").read_text(encoding="utf-8"))
    found = _Validator(schema).iter_errors(raw)
    errors = sorted(found, key=lambda error: [str(part) for part in error.absolute_path])
    if errors:
        raise ConfigError(_one_line(errors[0]))
    for name, server in raw["servers"].items():
        if wrong := _wrong_in_url(server["url"]):
            raise ConfigError(f"servers.{name}.url: {server['url']!r} {wrong}; allowed: http://host:port")
    return dict(_with_defaults(raw, schema, schema))


def _wrong_in_url(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"is no URL ({error})"
    if not parts.hostname:
        return "names no host"
    if parts.query or parts.fragment:
        return "is more than a server's address"
    return "has port 0" if port == 0 else None


def _one_line(error: jsonschema.ValidationError) -> str:
    error = max([error, *(error.context or [])], key=lambda e: len(e.absolute_path))
    where = ".".join(map(str, error.absolute_path)) or "config"
    limit: Any = error.validator_value
    schema: Any = error.schema
    instance: Any = error.instance
    if error.validator == "additionalProperties":
        allowed = ", ".join(sorted(schema.get("properties", {})))
        unknown = sorted(set(instance) - set(schema.get("properties", {})))
        return f"{where}: unknown key {unknown[0]!r}; allowed: {allowed}"
    if error.validator == "required":
        return f"{where}: {error.message.replace(' is a required property', ' is missing')}"
    if error.validator == "enum":
        return f"{where}: {error.instance!r} is not allowed; allowed: {', '.join(map(str, limit))}"
    if error.validator == "not":
        return f"{where}: {instance!r} is set by speed-matrix itself; allowed: other fields of a request"
    if error.validator == "pattern":
        return f"{where}: {_pattern_hint(error)}"
    if error.validator == "anyOf" and "K" in str(schema.get("description", "")):
        return f"{where}: {error.instance!r} is no size; allowed: a whole number of tokens, or one with K (8K = 8192)"
    if error.validator == "uniqueItems":
        return f"{where}: the same value stands twice"
    message = error.message.replace(repr(instance), "this value") if _may_hold_secret(error) else error.message
    return f"{where}: {message[:200]}"


def _pattern_hint(error: jsonschema.ValidationError) -> str:
    schema: Any = error.schema
    what = str(schema.get("description") or "names are lower-case letters, digits, . and -")
    shown = "" if _may_hold_secret(error) else f"{error.instance!r} does not fit: "
    return f"{shown}{what}"


def _may_hold_secret(error: jsonschema.ValidationError) -> bool:
    """Whether the wrong value may be or hold a key or a password, so that it is not repeated."""
    place = error.absolute_path
    return bool({"launch", "url"} & set(place)) or any(redact.is_secret_name(str(part)) for part in place)


def _with_defaults(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """`value` with the defaults of `schema` filled in, all the way down."""
    if "$ref" in schema:
        found = root["$defs"][schema["$ref"].rpartition("/")[2]]
        schema = {**found, **schema}
    if not isinstance(value, dict):
        return value
    known = schema.get("properties", {})
    full = {key: sub["default"] for key, sub in known.items() if "default" in sub} | value
    other = schema.get("additionalProperties")
    rest = other if isinstance(other, dict) else {}
    return {key: _with_defaults(item, known.get(key, rest), root) for key, item in full.items()}
