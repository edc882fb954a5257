"""Files of a sweep: written whole or not at all, checked against their schema when read, every attempt kept."""

from __future__ import annotations

import json
import math
import os
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from speedmatrix.cells import Cell
from speedmatrix.configfile import SCHEMAS, whole_patterns
from speedmatrix.history import new_path


class StoreError(Exception):
    """A file can't be used; the message is one line that names it and says what to do; `what` is its middle."""

    def __init__(self, path: Path | str, what: str, advice: str = "delete it and run again") -> None:
        super().__init__(f"{path} {what}: {advice}")
        self.what = what


def utc_now() -> str:
    """The wall clock in UTC, to the second: `2026-12-01T05:10:00Z`. Labels a run, times nothing."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_text(path: Path, text: str) -> None:
    """Write `text` so that `path` holds all of it or stays as it was; half a surrogate pair becomes its escape."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` so that `path` holds all of it or stays as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """A JSON file's value. StoreError with one line when it is not whole."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_finite, parse_float=_finite)
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(path, f"can't be read ({_cause(error)})") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no JSON number")
    return number


def _cause(error: OSError | ValueError | RecursionError) -> str:
    return (error.strerror or "unreadable") if isinstance(error, OSError) else "not valid JSON"


@cache
def schema(kind: str) -> Any:
    """The validator of JSONs of a kind: cell, launch, health."""
    return whole_patterns(jsonschema.Draft202012Validator)(
        json.loads((SCHEMAS / f"{kind}.schema.json").read_text(encoding="utf-8"))
    )


def read_valid(path: Path, kind: str) -> dict[str, Any]:
    """A JSON of a kind, valid by its schema. StoreError with one line otherwise."""
    raw = read_json(path)
    error = next(iter(schema(kind).iter_errors(raw)), None)
    if error is not None:
        where = ".".join(map(str, error.absolute_path)) or "the file"
        said = error.message if len(error.message) <= 120 else f"{error.validator} is not met"
        raise StoreError(path, f"is no valid {kind} file ({where}: {said})")
    return dict(raw)


def read_cell(path: Path) -> dict[str, Any]:
    """A cell's JSON, valid by its schema and of the cell that its path names. StoreError with one line otherwise."""
    raw = read_valid(path, "cell")
    own = Cell(*(raw[key] for key in ("server", "phase", "context_tokens", "concurrency", "repeat"))).path
    if path.parts[-2:] != Path(own).parts[-2:]:
        raise StoreError(path, f"holds another cell ({own})")
    return raw


def write_cell(cell: Cell, result: dict[str, Any]) -> None:
    """Write a cell's JSON, first into results/history, where every attempt stays, then into its place."""
    error = next(iter(schema("cell").iter_errors(result)), None)
    if error is not None:
        what = f"would hold what its own schema refuses ({error.message[:200]})"
        raise StoreError(cell.path, what, "a fault of this program, please report it")
    write_json(new_path(cell, datetime.now(UTC)), result)
    write_json(Path(cell.path), result)
