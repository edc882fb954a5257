"""Variants of a server: placeholders of its entry filled in with every combination of the listed values. Pure."""

from __future__ import annotations

import itertools
import re
from typing import Any

from speedmatrix.configfile import ConfigError

_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_NAME_CHARACTERS = 64  # as the schema has it for names that are written out


def expanded(servers: dict[str, Any]) -> dict[str, Any]:
    """`servers` of the config with each entry that has `variants` replaced by a server `name-key-value` a combination.

    `{key}` is filled in wherever the entry has text. Raises ConfigError for a key that the launch does not use, a name
    that comes twice, and variants of a server that is not launched.
    """
    full: dict[str, Any] = {}
    for name, spec in servers.items():
        for variant, own in _variants(name, spec):
            if variant in full:
                raise ConfigError(f"servers.{name}: two servers would be called {variant}")
            if len(variant) > _NAME_CHARACTERS:
                raise ConfigError(f"servers.{name}: {variant} has over {_NAME_CHARACTERS} characters: shorten it")
            full[variant] = own
    return full


def _variants(name: str, spec: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    lists = spec.get("variants") or {}
    rest = {key: value for key, value in spec.items() if key != "variants"}
    if not lists:
        return [(name, rest)]
    if "launch" not in spec:
        raise ConfigError(f"servers.{name}.variants: only a server that is launched has variants")
    for key in lists:
        if f"{{{key}}}" not in str([spec["launch"]["command"], spec["launch"]["env"]]):
            raise ConfigError(f"servers.{name}.variants.{key}: nothing in the launch says {{{key}}}")
    combinations = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    return [(_named(name, chosen), _filled(rest, chosen)) for chosen in combinations]


def _named(name: str, chosen: dict[str, Any]) -> str:
    parts = [name, *(part for key, value in chosen.items() for part in (key, str(value)))]
    plain = (re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in parts)
    return "-".join(part for part in plain if part)


def _filled(value: Any, chosen: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, chosen) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, chosen) for item in value]
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda match: str(chosen.get(match[1], match[0])), value)
    return value
