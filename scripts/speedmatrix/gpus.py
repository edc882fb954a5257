"""The GPUs of this host, whoever made them, and which of them a server uses."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Protocol

from speedmatrix.amd import Amd
from speedmatrix.nvidia import NoGpus, Nvidia
from speedmatrix.readings import Reading

BY_PROCESSES = "the server's processes on them"
ALL = "all of this host, since which of them the server uses is not told"


class Gpus(Protocol):
    """What a maker's GPUs are asked; all by index."""

    source: str
    visible_env: tuple[str, ...]
    count: int

    def system(self) -> dict[str, Any]: ...
    def facts(self, index: int) -> dict[str, Any]: ...
    def read(self, index: int, with_pcie: bool = False) -> Reading: ...
    def unsupported(self, index: int) -> dict[str, str]: ...
    def processes(self, index: int) -> dict[int, int | None] | None: ...
    def is_sliced(self, index: int) -> bool: ...
    def index_of(self, uuid: str) -> int | None: ...


@dataclass(frozen=True)
class Used:
    """Which GPUs count for a server, and by what that is known."""

    indexes: tuple[int, ...]
    by: str


def find() -> Gpus:
    """The GPUs of this host. Raises NoGpus with each maker's reason."""
    why = []
    for maker in (Nvidia, Amd):
        try:
            return maker()
        except NoGpus as error:
            why.append(str(error))
    raise NoGpus("; ".join(why))


def used(gpus: Gpus, pids: Set[int], environment: Mapping[str, str]) -> Used:
    """The GPUs that the processes `pids` compute on, else those that their environment names, else all.

    Inside a container the driver lists pids of the host, which fit none of those that are seen here.
    """
    on = {index: gpus.processes(index) or {} for index in range(gpus.count)}
    own = tuple(index for index, running in on.items() if not pids.isdisjoint(running))
    if own:
        return Used(own, BY_PROCESSES)
    for name in gpus.visible_env:
        named = _named(gpus, environment[name]) if name in environment else None
        if named is not None:
            return Used(named, f"{name} of the server's process")
    return Used(tuple(range(gpus.count)), ALL)


def _named(gpus: Gpus, listed: str) -> tuple[int, ...] | None:
    """The indexes in a list like `0,1` or `GPU-…`, up to the first that is none, as CUDA reads it.

    None where an index may mean another GPU: CUDA counts the fastest first, the driver by place on the bus.
    """
    if len({gpus.facts(index)["name"] for index in range(gpus.count)}) > 1 and listed[:1].isdigit():
        return None
    found: list[int] = []
    for name in (part.strip() for part in listed.split(",")):
        index = int(name) if name.isdigit() else gpus.index_of(name) if name[:1].isalpha() else None
        if index is None or index >= gpus.count:
            break
        found.append(index)
    return tuple(dict.fromkeys(found))
