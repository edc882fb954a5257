"""Whether what was written down agrees with itself: figures with arrivals, table and page with cells. Pure."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

from speedmatrix import METHOD, VERSION, figures, merge, metrics, validity
from speedmatrix.arrivals import Run
from speedmatrix.digests import digest

TOLERANCE = 1e-9  # relative; the same sums in another order or by another numpy differ by less
TABLE_ID = "measurements-csv"  # of the page's element that holds the table
_TEXT_FLAG = "repeating"  # by the answers' texts, which are not kept
_BY_RAN = ("ttft_ms", "ttft_p90_ms", "ttft_p99_ms", "ttft_kind", "cached_share", "prompt_tokens")

Json = dict[str, Any]


@dataclass(frozen=True)
class Finding:
    """What is the matter with the thing at `where`, and what to do. `off` False: worth knowing, nothing is wrong."""

    where: str
    what: str
    advice: str = ""
    off: bool = True

    @property
    def line(self) -> str:
        """The finding in one line."""
        text = f"{'' if self.off else 'note: '}{self.where}: {self.what}{': ' if self.advice else ''}{self.advice}"
        return " ".join(text.split())


def contradictions(cell: Json) -> list[str]:
    """What a cell's JSON says that can't be true together."""
    found = []
    if cell["identity"] is not None and cell["fingerprint"] != digest(cell["identity"]):
        found.append(f"its fingerprint is {cell['fingerprint']}, its identity gives {digest(cell['identity'])}")
    if cell["status"] in ("valid", "limited") and not cell["figures"]:
        found.append(f"it is {cell['status']} without figures")
    if cell["status"] not in ("valid", "limited") and cell["figures"]:
        found.append(f"it is {cell['status']} and has figures")
    plan = cell["plan"]
    over = {
        "over_capacity": _exceeds(plan["kv_needed_tokens"], plan["kv_capacity_tokens"]),
        "over_context": _exceeds(plan["request_tokens"], plan["max_context_tokens"]),
    }
    if cell["status"] in over and not over[cell["status"]]:
        found.append(f"it is {cell['status']}, and by its plan it fits")
    if cell["figures"] and not cell.get("imported") and any(over.values()):
        found.append("it was measured, and by its plan it does not fit")
    return found


def _exceeds(needed: int | None, limit: int | None) -> bool:
    return needed is not None and limit is not None and needed > limit


def is_comparable(cell: Json) -> bool:
    """Whether this version computes figures as the cell's did."""
    return bool(cell["method"] == METHOD)


def differences(cell: Json, run: Run) -> list[str]:
    """What of a measured cell its arrivals give otherwise, one line each; none where all agrees.

    A file of a version that kept less gives no server's counts, no client's state and no lanes that ran: what hangs on
    them is left out.
    """
    kept: Json = dict(cell["figures"])
    if cell["phase"] == "prefill":
        again, kept["prefill"] = _prefill(run), cell["prefill"]
    else:
        again = _decode(cell, run)
    left_out = () if run.readings is not None else _unknown(cell, again)
    lines = list(_differ({k: v for k, v in kept.items() if k not in left_out}, _without(again, left_out)))
    if run.readings is not None and cell["phase"] == "decode":
        lines += _differ({"client": cell["client"]}, {"client": validity.client_state(run)})
        if (cell["status"] == "limited") != (run.ran is not None):
            lines.append(
                f"it is {cell['status']}, and {run.ran or 'all'} of {cell['concurrency']} requests ran at once"
            )
        lines += _flags(cell, run)
    lanes = {one.lane for one in run.streams}
    if cell["phase"] == "decode" and len(lanes) != cell["concurrency"]:
        lines.append(f"its arrivals are of {len(lanes)} requests at once")
    return lines


def _without(figures_: Json, names: tuple[str, ...]) -> Json:
    return {name: value for name, value in figures_.items() if name not in names}


def _prefill(run: Run) -> Json:
    again, details = figures.prefill(run)
    return again | {"prefill": details}


def _decode(cell: Json, run: Run) -> Json:
    again = figures.decode(run)
    return again | dict.fromkeys(metrics.LATENCIES) if validity.BUFFERED in cell["flags"] else again


def _unknown(cell: Json, again: Json) -> tuple[str, ...]:
    """Figures that an older file of arrivals does not tell."""
    by_usage = () if again["cached_share"] is not None else ("cached_share", "ttft_kind")
    by_ran = _BY_RAN if cell["status"] == "limited" else ()
    by_clock = ("prefill",) if cell["phase"] == "prefill" and again["prefill"]["server_prefill_ms"] is None else ()
    return (*figures.BY_SERVER, *by_usage, *by_ran, *by_clock)


def _flags(cell: Json, run: Run) -> Iterator[str]:
    """Flags that the arrivals give otherwise. Thresholds may differ between versions, so only for this one's cells."""
    if cell["tool_version"] != VERSION or cell["prompt"] is None:
        return
    plan = cell["plan"]
    meant = validity.Meant(
        plan["request_tokens"] - plan["max_output_tokens"], cell["prompt"]["form"] == "ids", plan["max_output_tokens"]
    )
    readings = run.readings or [{}]
    preemptions = figures.rise(readings[0], readings[-1], "preemptions")
    seen = validity.Evidence(run, figures.decode(run), meant, validity.client_state(run), preemptions)
    again, kept = set(validity.flags(seen)), set(cell["flags"]) - {_TEXT_FLAG}
    if again != kept:
        names = [", ".join(sorted(some)) or "none" for some in (kept, again)]
        yield f"its flags are {names[0]}, its arrivals give {names[1]}"


def _differ(kept: Any, again: Any, name: str = "") -> Iterator[str]:
    if isinstance(kept, dict) and isinstance(again, dict):
        for key in dict.fromkeys([*kept, *again]):
            yield from _differ(kept.get(key), again.get(key), f"{name}.{key}".lstrip("."))
    elif isinstance(kept, list) and isinstance(again, list) and len(kept) == len(again):
        for place, pair in enumerate(zip(kept, again, strict=True)):
            yield from _differ(*pair, f"{name}.{place}")
    elif not _same(kept, again):
        yield f"{name} is {_shown(kept)}, its arrivals give {_shown(again)}"


def _same(kept: Any, again: Any) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (kept, again))
    return math.isclose(kept, again, rel_tol=TOLERANCE, abs_tol=TOLERANCE) if numbers else bool(kept == again)


def _shown(value: Any) -> str:
    return "absent" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)[:60]


Rows = dict[tuple[str, ...], dict[str, str]]
_KEY = ("server", "phase", "context_tokens", "concurrency", "repeat")


def _rows(text: str) -> tuple[Rows, list[str]]:
    """(rows by cell, what is wrong with the table as a whole)."""
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        return {}, [f"it is no CSV ({error})"]
    if not lines or lines[0] != merge.COLUMNS:
        return {}, ["it has other columns than this version writes"]
    rows: Rows = {}
    wrong = []
    for values in lines[1:]:
        row = dict(zip(merge.COLUMNS, values, strict=False))
        key = tuple(row.get(name, "") for name in _KEY)
        wrong += [f"{_named(key)} stands twice in it"] * (key in rows)
        rows[key] = row
    return rows, wrong


def _named(key: tuple[str, ...]) -> str:
    return f"{key[0]} {key[1]} {key[2]} x{key[3]}" + (f" repeat {key[4]}" if key[4] not in ("", "1") else "")


def table(text: str, there: list[Json], wanted: list[Json], prices: dict[str, float]) -> list[str]:
    """What a table in CSV says otherwise than the cells that are `there`, and which of the `wanted` ones it lacks.

    A row of a cell that is no longer wanted is right if its cell is still there and agrees. `prices`: the config's.
    """
    rows, wrong = _rows(text)
    if not rows:
        return wrong or ["it has no rows"] * bool(wanted)
    told, _ = _rows(merge.csv_text(merge.table(there, prices)))
    for key, row in rows.items():
        if key not in told:
            wrong.append(f"it has {_named(key)}, of which there is no cell")
            continue
        other = [name for name in merge.COLUMNS if row.get(name) != told[key][name]]
        if other:
            more = f" (and {len(other) - 1} more)" if len(other) > 1 else ""
            pair = [repr(one.get(other[0]) or "") for one in (row, told[key])]
            wrong.append(f"{_named(key)}: {other[0]} is {pair[0]}, the cell says {pair[1]}{more}")
    lacking = [key for key in _rows(merge.csv_text(merge.table(wanted)))[0] if key not in rows]
    return wrong + [f"{_named(key)} is measured and not in it" for key in lacking]


def embedded_table(page: str) -> str | None:
    """The table in CSV that a page holds; None where it holds none: a version before that, or something else."""
    reader = _TableReader()
    reader.feed(page)
    try:
        found = json.loads("".join(reader.parts)) if reader.parts else None
    except (ValueError, RecursionError):
        return ""
    return found if isinstance(found, str) else None if found is None else ""


class _TableReader(HTMLParser):
    """Collects the text of the page's element of TABLE_ID."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script" and ("id", TABLE_ID) in attrs

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.parts.append(data)
