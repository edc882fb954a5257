"""What the person sees while a sweep runs: a line as each cell ends, and the last one of an interrupted run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from speedmatrix import estimate, servers, store
from speedmatrix.cells import Cell
from speedmatrix.config import Config

_WORDS = {"over_capacity": "over capacity", "over_context": "over the context limit"}


def cell_line(config: Config, cell: Cell, result: dict[str, Any]) -> str:
    """`[ 7/21] tiny decode 1K x4: valid · 512 tok/s · … · about 1 min 10 s left`."""
    cells = config.cells()
    place = f"[{cells.index(cell) + 1:>{len(str(len(cells)))}}/{len(cells)}]"
    status = _WORDS.get(result["status"], result["status"])
    told = [status, *result["flags"], *_figures(result)] + ([result["reason"]] if result["reason"] else [])
    left = time_left_s(config)
    told.append(f"about {estimate.duration_text(left)} left" if left else "last cell")
    return f"{place} {cell.server} {cell.label}: {' · '.join(told)}"


def _figures(result: dict[str, Any]) -> list[str]:
    figures = result["figures"]
    if not figures:
        return []
    parts = [
        ("total_tok_s", "{:,.1f} tok/s"),
        ("request_tok_s", "{:,.1f} each"),
        ("ttft_ms", "TTFT {:,.0f} ms"),
        ("itl_ms", "ITL {:,.2f} ms"),
    ]
    return [form.format(figures[key]) for key, form in parts if figures.get(key) is not None]


def time_left_s(config: Config) -> float:
    """Seconds that the cells without a result will take, from what is measured so far; 0 when there are none."""
    missing = [cell for cell in config.cells() if not Path(cell.path).exists()]
    return cells_s(config, missing)


def cells_s(config: Config, cells: list[Cell]) -> float:
    """Seconds that these cells will take, from what is measured so far."""
    known = {name: _known(config, name) for name in {cell.server for cell in cells}}
    return sum(estimate.cell_s(cell, config.measure, known[cell.server]) for cell in cells)


def _known(config: Config, name: str) -> estimate.Speeds:
    server = config.servers[name]
    facts = servers.known_facts(server)
    capacity = servers.known_capacity(facts) if facts["facts"] else server.capacity
    return estimate.speeds(results(config, name), capacity)


def results(config: Config, server: str | None = None) -> list[dict[str, Any]]:
    """The cell JSONs of the config's cells that are there and whole, in the config's order."""
    return results_of(cell for cell in config.cells() if server in (None, cell.server))


def results_of(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """The JSONs of these cells that are there and whole, in the given order."""
    found = []
    for cell in cells:
        with contextlib.suppress(store.StoreError):  # merge names it; a progress line must not fail on it
            found += [store.read_cell(Path(cell.path))] if Path(cell.path).exists() else []
    return found


def interrupted_line(config: Config) -> str:
    """How far a run came that did not end well, and how it goes on."""
    there = results(config)
    failed = sum(result["status"] == "failed" for result in there)
    done, cells = len(there) - failed, len(config.cells())
    advice = "the same command goes on from here; `snakemake --cores 1 partial` shows what is there"
    if done == cells:
        return f"stopped: not every cell is up to date with the config; {advice}"
    return f"stopped: {done} of {cells} cells are measured{f', {failed} failed' if failed else ''}; {advice}"
