"""Cell JSONs → one table: results/measurements.csv, a row each."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pandas as pd

from speedmatrix import cost, store
from speedmatrix.cells import Cell

FIGURES = [
    *("total_tok_s", "request_tok_s", "ttft_ms", "ttft_kind", "itl_ms", "itl_p90_ms", "itl_p99_ms", "active_avg"),
    *("completed", "output_tokens", "measured_s", "prompt_tokens", "cached_share", "token_source", "server_tok_s"),
    "server_diff_pct",
]
MORE = ["server_active_avg", "acceptance_length", "ttft_p90_ms", "ttft_p99_ms", "ttft_in_window_ms", "restarts"]
FIRST = ["server", "phase", "context_tokens", "concurrency", "repeat", "status", "reason", "flags"]
TELEMETRY = ["energy_j", "tok_per_j", "power_avg_w", "gpu_temp_max_c", "throttle"]
COLUMNS = [*FIRST, *FIGURES, "started_at", "fingerprint", *MORE, *TELEMETRY, "price_per_mtok"]
TEXTS = ["server", "phase", "status", "reason", "flags", "ttft_kind", "token_source", "started_at", "fingerprint"]
TEXTS += ["throttle"]
COUNTS = ["context_tokens", "concurrency", "repeat", "completed", "restarts"]
SAME_CAPACITY = 0.02
# What a spreadsheet takes for a formula's beginning, wide forms included, and after what: where semicolons or tabs
# part cells, a cell begins after each of them, whatever is in quotes here.
_FORMULA = r"(^|[;\t])(\s*)(?=[=+\-@＝＋－＠])"


def read_cells(paths: list[Path]) -> list[dict[str, Any]]:
    """All cells, each checked against its schema, in the given order. StoreError names the first that is broken."""
    return [store.read_cell(path) for path in paths]


def table(cells: list[dict[str, Any]], prices: dict[str, float] | None = None) -> pd.DataFrame:
    """One row a cell with the columns of COLUMNS, in the given order; absent figures are missing values.

    `prices`: of an hour by server, where the config states one.
    """
    rows = [_row(cell, (prices or {}).get(cell["server"])) for cell in cells]
    return _typed(pd.DataFrame(rows, columns=COLUMNS))


def _row(cell: dict[str, Any], price_per_hour: float | None) -> dict[str, Any]:
    figures, telemetry = cell["figures"] or {}, cell.get("telemetry") or {}
    own = {key: cell[key] for key in (*FIRST[:-1], "started_at", "fingerprint")}
    own |= {"flags": ";".join(cell["flags"]), "price_per_mtok": cost.price_per_mtok(price_per_hour, cell)}
    return own | {key: figures.get(key) for key in FIGURES + MORE} | {key: telemetry.get(key) for key in TELEMETRY}


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write the table as CSV, atomically."""
    store.write_text(path, csv_text(frame))


def csv_text(frame: pd.DataFrame) -> str:
    """The table as CSV; no text in it can be taken for a formula by a spreadsheet."""
    safe = frame.copy()
    for column in TEXTS:
        text = safe[column].fillna("").str.replace(r"[\x00-\x1f\x7f-\x9f]+", " ", regex=True).str.strip()
        safe[column] = text.str.replace(_FORMULA, r"\1\2'", regex=True)
    return safe.to_csv(index=False, lineterminator="\n", float_format="%.9g")


def read_csv(path: Path) -> pd.DataFrame:
    """The table that `write_csv` wrote, with its types."""
    # A server may be called 1.10 or null, a fingerprint may be all digits: texts are never guessed at.
    return _typed(pd.read_csv(path, dtype=dict.fromkeys(TEXTS, "string"), keep_default_na=False, na_values=[""]))


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Texts as strings, counts as nullable integers, figures as nullable floats."""
    figures = [column for column in COLUMNS if column not in TEXTS + COUNTS]
    kinds = dict.fromkeys(TEXTS, "string") | dict.fromkeys(COUNTS, "Int64") | dict.fromkeys(figures, "Float64")
    return frame.astype(kinds)


class MixedError(Exception):
    """Cells that may not stand on one page; the message is one line."""


def refuse_mixed(cells: list[dict[str, Any]]) -> None:
    """For `report.strict`: raise MixedError where a server's cells measured different things."""
    for server, odd in odd_fingerprints(cells).items():
        names = [name for some in odd.values() for name in some]
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        raise MixedError(
            f"report.strict: {shown} of {server} measured something else ({', '.join(odd)}) than its other cells:"
            f" delete results/servers/{server} and run again, or say strict: false"
        )


def odd_fingerprints(cells: list[dict[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """{server: {what: [cells]}} of cells that measured something else than most of their server's cells.

    `what` is their fingerprint, with the size of the KV cache where only that differs: engines profile it anew at each
    start, so that it is the same within SAME_CAPACITY.
    """
    by_server: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for cell in cells:
        if cell["fingerprint"] and cell["figures"]:
            by_server[cell["server"]].append(cell)
    return {server: odd for server, own in by_server.items() if (odd := _odd(own))}


def _odd(cells: list[dict[str, Any]]) -> dict[str, list[str]]:
    usual = Counter(cell["fingerprint"] for cell in cells).most_common(1)[0][0]
    sizes = [cell["kv_capacity_tokens"] for cell in cells if cell["kv_capacity_tokens"]]
    usual_size = statistics.median_low(sizes) if sizes else 0
    odd: dict[str, list[str]] = defaultdict(list)
    for cell in cells:
        size = cell["kv_capacity_tokens"] or usual_size
        if cell["fingerprint"] != usual:
            odd[cell["fingerprint"]].append(cell_name(cell))
        elif abs(size - usual_size) > SAME_CAPACITY * usual_size:
            odd[f"{usual}, KV cache of {size:,} tokens"].append(cell_name(cell))
    return dict(odd)


def cell_name(cell: dict[str, Any]) -> str:
    """The name of a cell JSON's cell, as its file has it."""
    return Cell(cell["server"], cell["phase"], cell["context_tokens"], cell["concurrency"], cell["repeat"]).name
