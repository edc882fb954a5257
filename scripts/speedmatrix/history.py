"""Every attempt ever made at a cell, as results/history keeps it, with its arrivals and telemetry; append-only."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from speedmatrix.cells import Cell

_STAMP = "%Y%m%dT%H%M%S.%fZ"


def history_dir(cell: Cell) -> Path:
    """Where every attempt at a cell is kept."""
    return Path("results/history") / cell.server


def new_path(cell: Cell, ended: datetime) -> Path:
    """The name in results/history of an attempt at `cell` that ended then (in UTC).

    Names sort as attempts were made, also where the wall clock was set back since the last one.
    """
    last = max(filter(None, map(_ended, attempts(cell))), default=None)
    if last is not None and ended <= last:
        ended = last + timedelta(microseconds=1)
    return history_dir(cell) / f"{cell.name}.{ended:{_STAMP}}.json"


def _ended(attempt: Path) -> datetime | None:
    """When an attempt ended, by its name; None where somebody else gave it."""
    with contextlib.suppress(ValueError):
        return datetime.strptime(".".join(attempt.stem.rsplit(".", 2)[1:]), _STAMP).replace(tzinfo=UTC)
    return None


def attempts(cell: Cell) -> list[Path]:
    """Every attempt at this cell, the oldest first."""
    return sorted(history_dir(cell).glob(f"{cell.name}.[0-9]*T*.json"))


def failed_attempts(cell: Cell) -> int:
    """How many attempts at this cell failed so far, from results/history."""
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in attempts(cell))
    return sum('"status": "failed"' in text for text in texts)


BESIDE = ("arrivals.npz", "telemetry.csv")


def arrivals_of(attempt: Path) -> Path:
    """Where an attempt's arrivals lie once a later attempt has its place beside the cell."""
    return attempt.with_name(f"{attempt.stem}.{BESIDE[0]}")


def set_aside(cell: Cell) -> None:
    """Move what lies beside the cell to the attempt that it is of, before another attempt takes its place.

    What belongs to no attempt (a job that was killed between two writes left it) stays, to be written over.
    """
    measured = [file for file in attempts(cell) if '"arrivals": "' in file.read_text("utf-8", "replace")]
    if measured and not arrivals_of(measured[-1]).exists():
        for kind in BESIDE:
            beside = Path(cell.path).with_name(f"{cell.name}.{kind}")
            if beside.exists():
                beside.replace(measured[-1].with_name(f"{measured[-1].stem}.{kind}"))


def adopt(cells: Iterable[Cell]) -> None:
    """Copy into results/history what lies in results/cells without any attempt there.

    For the sweep's start: Snakemake deletes a cell's JSON before it is measured anew, and results that came here
    without their history would be lost by that.
    """
    kept = {path.parent.name + "/" + path.name.rsplit(".", 3)[0] for path in Path("results/history").glob("*/*T*.json")}
    for cell in cells:
        here = Path(cell.path)
        if f"{cell.server}/{cell.name}" not in kept and here.exists():
            copy = new_path(cell, datetime.fromtimestamp(here.stat().st_mtime, UTC))
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(here, copy)
