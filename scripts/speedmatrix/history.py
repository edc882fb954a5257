"""Every attempt ever made at a cell, as results/history keeps it; append-only."""

from __future__ import annotations

from pathlib import Path

from speedmatrix.cells import Cell


def history_dir(cell: Cell) -> Path:
    """Where every attempt at a cell is kept."""
    return Path("results/history") / cell.server


def attempts(cell: Cell) -> list[Path]:
    """Every attempt at this cell, the oldest first."""
    return sorted(history_dir(cell).glob(f"{cell.name}.[0-9]*T*.json"))


def failed_attempts(cell: Cell) -> int:
    """How many attempts at this cell failed so far, from results/history."""
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in attempts(cell))
    return sum('"status": "failed"' in text for text in texts)
