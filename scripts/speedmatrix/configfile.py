"""The config's file: YAML in, checked against its schema with one line an error, defaults filled in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

SCHEMAS = Path(__file__).parents[2] / "config" / "schemas"


class ConfigError(Exception):
    """The config is wrong; the message is one line: key, what is wrong, what is allowed."""


def load(path: Path) -> dict[str, Any]:
    """The mapping of a YAML file. Raises ConfigError with one line."""
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
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
    found = jsonschema.Draft202012Validator(schema).iter_errors(raw)
    errors = sorted(found, key=lambda error: [str(part) for part in error.absolute_path])
    if errors:
        raise ConfigError(_one_line(errors[0]))
    return dict(_with_defaults(raw, schema, schema))


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
    if error.validator == "pattern":
        return f"{where}: {_pattern_hint(error)}"
    if error.validator == "anyOf" and "K" in str(schema.get("description", "")):
        return f"{where}: {error.instance!r} is no size; allowed: a whole number of tokens, or one with K (8K = 8192)"
    if error.validator == "uniqueItems":
        return f"{where}: the same value stands twice"
    return f"{where}: {str(error.message)[:200]}"


def _pattern_hint(error: jsonschema.ValidationError) -> str:
    schema: Any = error.schema
    what = str(schema.get("description") or "names are lower-case letters, digits, . and -")
    # A name that does not look like one may be the key itself: it is not repeated.
    shown = "" if "api_key_env" in error.absolute_path else f"{error.instance!r} does not fit: "
    return f"{shown}{what}"


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
