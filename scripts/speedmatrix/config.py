"""The config as typed objects: read, checked with one line an error, and turned into cells and params."""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from speedmatrix import METHOD, configfile, known, redact, variants
from speedmatrix.cells import Capacity, Cell, parse_size
from speedmatrix.configfile import ConfigError
from speedmatrix.digests import canonical, digest
from speedmatrix.history import failed_attempts

SOURCE_ENV = "SPEEDMATRIX_CONFIG"  # the sweep's config, handed from the Snakefile to its jobs' processes
_ENDPOINT = re.compile(r"(/+v1(/+(chat/+)?completions)?)?/*$")  # an address as some other tool's config has it


@dataclass(frozen=True)
class Launch:
    """How a server is started; placeholders of `command` and `env` are still unresolved. Times in seconds."""

    command: tuple[str, ...] | str
    env: dict[str, str]
    ready_timeout_s: float
    stop_grace_s: float
    max_launches: int


@dataclass(frozen=True)
class Server:
    """One server of the config. `launch` None: attach to one that runs already."""

    name: str
    engine: str
    url: str
    launch: Launch | None
    api_key_env: str | None
    model: str | None
    facts: dict[str, Any]
    capacity: Capacity
    hardware: dict[str, Any] | None
    tokenizer: str | None = None
    verify_tls: bool | str = True
    price_per_hour: float | None = None

    @property
    def digest(self) -> str:
        """12 hex digits that change with anything that says which server runs and how it was launched."""
        what = self.launch and {"command": self.launch.command, "env": self.launch.env}
        return digest([self.engine, self.url, self.model, what])

    @property
    def stated(self) -> str:
        """12 hex digits that change with anything that the config says of the server and that health.json repeats."""
        return digest([asdict(self.capacity), self.facts, self.hardware, self.tokenizer])

    @property
    def headers(self) -> dict[str, str]:
        """The request headers that carry the key. ConfigError where the variable is not set."""
        if not self.api_key_env:
            return {}
        key = os.environ.get(self.api_key_env)
        if not key:
            raise ConfigError(f"servers.{self.name}.api_key_env: the variable {self.api_key_env} is not set")
        return {"Authorization": f"Bearer {key}"}


@dataclass(frozen=True)
class Measure:
    """How a cell is measured; the config's `measure` section, field by field."""

    duration_s: float
    max_output_tokens: int
    prompts: str
    seed: int
    nonce: str | None
    request: dict[str, Any]
    prefill_repeats: int
    repeats: int
    settle_s: float
    stall_s: float
    ramp_timeout_s: float

    def used_by(self, phase: str) -> dict[str, Any]:
        """The keys that affect a cell of this phase: another key's change must not measure it anew."""
        common = ("seed", "nonce", "request", "stall_s")
        own = ("prefill_repeats",) if phase == "prefill" else _DECODE_KEYS
        # A request's extra fields may hold a key; it is in what Snakemake keeps of params, and in the cell.
        return {key: getattr(self, key) for key in (*common, *own)} | {"request": redact.redact_tree(self.request)}


_DECODE_KEYS = ("prompts", "duration_s", "max_output_tokens", "settle_s", "ramp_timeout_s")


@dataclass(frozen=True)
class Config:
    """A whole sweep."""

    title: str | None
    author: str | None
    servers: dict[str, Server]
    prefill_contexts: tuple[int, ...]
    decode_contexts: tuple[int, ...]
    concurrency: tuple[int, ...]
    measure: Measure
    slo: dict[str, float] = field(default_factory=dict)
    strict: bool = False

    def cells(self) -> list[Cell]:
        """All cells in the order they are measured: server by server, prefill first, small before large."""
        return [cell for name in self.servers for cell in self._server_cells(name)]

    def _server_cells(self, name: str) -> list[Cell]:
        prefill = [Cell(name, "prefill", context) for context in self.prefill_contexts]
        decode = [
            Cell(name, "decode", context, lanes, repeat)
            for context in self.decode_contexts
            for lanes in self.concurrency
            for repeat in range(1, self.measure.repeats + 1)
        ]
        return prefill + decode

    def params(self, cell: Cell) -> str:
        """One canonical JSON string of everything that affects this cell's figures, and nothing else.

        The failed attempts are in it, so that Snakemake itself sees that a failed cell is to be tried again.
        """
        return canonical(self._affecting(cell) | {"failed_attempts": failed_attempts(cell)})

    def digest(self, cell: Cell) -> str:
        """12 hex digits that two attempts at a cell share if they would measure the same."""
        return digest(self._affecting(cell))

    def _affecting(self, cell: Cell) -> dict[str, Any]:
        # What the config says in free words is a hash: Snakemake keeps params, and a secret may stand there.
        server = self.servers[cell.server]
        return {
            "cell": asdict(cell),
            "method": METHOD,
            "server": [server.digest, server.stated],
            "measure": self.measure.used_by(cell.phase),
        }

    def secrets(self) -> set[str]:
        """The values of all environment variables that the config names, and what it holds itself by a secret's name:
        whatever a server does with them, they are to be hidden."""
        names = {name for server in self.servers.values() for name in _named_variables(server)}
        held = [redact.secrets_in(_free_words(server)) for server in self.servers.values()]
        held.append(redact.secrets_in(self.measure.request))
        return {value for name in names if (value := os.environ.get(name))}.union(*held)

    def missing_variables(self) -> list[str]:
        """One line for each environment variable that the config names and that is not set."""
        return [line for server in self.servers.values() for line in _missing(server)]


def _free_words(server: Server) -> dict[str, Any]:
    """All in which the config may say anything."""
    launch: dict[str, Any] = {"command": server.launch.command, "env": server.launch.env} if server.launch else {}
    words = launch | {"facts": server.facts, "hardware": server.hardware or {}}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in words.items()}


def _named_variables(server: Server) -> dict[str, str]:
    """{variable: the key of the config that names it}"""
    launch = server.launch
    texts = [] if launch is None else [canonical(launch.command), *launch.env.values()]
    names = {name: "launch" for text in texts for name in re.findall(r"\{env:([A-Za-z_]\w*)\}", text)}
    if server.api_key_env:
        names[server.api_key_env] = "api_key_env"
    return names


def _missing(server: Server) -> list[str]:
    unset = [(name, key) for name, key in _named_variables(server).items() if not os.environ.get(name)]
    return [f"servers.{server.name}.{key}: the variable {name} is not set" for name, key in unset]


def read(files: list[str], overrides: Mapping[str, Any] | None = None) -> Config:
    """Read the YAML `files` (later ones win), lay `overrides` over them, check, and return the typed config.

    Raises ConfigError with one line for anything that is wrong.
    """
    return parse(load(files, overrides or {}))


def load(files: list[str], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The raw mapping of the YAML `files` and `overrides`, later ones over earlier ones. Raises ConfigError."""
    raw: dict[str, Any] = {}
    for name in files:
        raw = configfile.merged(raw, configfile.load(Path(name)))
    raw = configfile.merged(raw, overrides)
    configfile.refuse_odd(raw)
    return raw


def from_environment() -> Config:
    """The config as the sweep read it at its start; for its jobs, whatever happened to the file since."""
    config = parse(json.loads(os.environ[SOURCE_ENV]))
    known.know(config.secrets())
    return config


def resolved() -> str:
    """The sweep's config in YAML, every default filled in and without secrets, for the page."""
    full = configfile.checked(json.loads(os.environ[SOURCE_ENV]))
    return yaml.safe_dump(redact.redact_tree(full), sort_keys=False, allow_unicode=True, width=110)


def said() -> str:
    """12 hex digits that change with anything that the page repeats of the config."""
    return digest(resolved())


def to_environment(files: list[str], overrides: Mapping[str, Any]) -> None:
    """Read the config once for the whole sweep and hand it to all of its processes.

    Through the environment, since its launch specs must pass through no file; and once, since a file that is edited
    while a sweep runs must not change what the sweep's later cells are. Raises ConfigError.
    """
    os.environ[SOURCE_ENV] = json.dumps(load(files, configfile.typed(overrides)))


def parse(raw: dict[str, Any]) -> Config:
    """The typed config of a raw mapping, defaults filled in from the schema. Raises ConfigError."""
    full = configfile.checked(raw)
    matrix = full["matrix"]
    return Config(
        title=full.get("title"),
        author=full.get("author"),
        servers={name: _server(name, spec) for name, spec in variants.expanded(full["servers"]).items()},
        prefill_contexts=_sizes("matrix.prefill.contexts", matrix["prefill"]["contexts"]),
        decode_contexts=_sizes("matrix.decode.contexts", matrix["decode"]["contexts"]),
        concurrency=tuple(sorted(matrix["decode"]["concurrency"])),
        measure=Measure(**full["measure"]),
        slo={name: limit for name, limit in full["report"]["slo"].items() if limit is not None},
        strict=full["report"]["strict"],
    )


def _sizes(key: str, sizes: list[int | str]) -> tuple[int, ...]:
    tokens = sorted(parse_size(size) for size in sizes)
    if len(set(tokens)) < len(tokens):
        raise ConfigError(f"{key}: the same context stands twice")
    return tuple(tokens)


def _server(name: str, spec: dict[str, Any]) -> Server:
    capacity = {key: parse_size(value) for key, value in spec["capacity"].items()}
    launch = spec.get("launch")
    return Server(
        name=name,
        engine=spec["engine"],
        url=_ENDPOINT.sub("", spec["url"]),
        launch=_launch(launch) if launch else None,
        api_key_env=spec.get("api_key_env"),
        model=spec.get("model"),
        facts=spec["facts"],
        capacity=Capacity(**capacity, kv_source="config" if "kv_tokens" in capacity else "unknown"),
        hardware=spec.get("hardware"),
        tokenizer=spec.get("tokenizer"),
        verify_tls=_verify_tls(name, spec["verify_tls"]),
        price_per_hour=spec.get("price_per_hour"),
    )


def _verify_tls(name: str, stated: bool | str) -> bool | str:
    """What `verify_tls` says; a file must hold certificates, else no https call could even begin."""
    if isinstance(stated, str):
        try:
            ssl.create_default_context(cafile=stated)
        except OSError as error:  # ssl.SSLError is one
            why = "holds no certificates" if isinstance(error, ssl.SSLError) else "can't be read"
            raise ConfigError(
                f"servers.{name}.verify_tls: {stated} {why}; name a PEM file, by its path from the working directory"
            ) from None
    return stated


def _launch(spec: dict[str, Any]) -> Launch:
    command = spec["command"]
    return Launch(
        command=command if isinstance(command, str) else tuple(map(str, command)),
        env={key: str(value) for key, value in spec["env"].items()},
        ready_timeout_s=spec["ready_timeout_s"],
        stop_grace_s=spec["stop_grace_s"],
        max_launches=spec["max_launches"],
    )
