"""Cells as a sweep leaves them, made from the figures of a published page (tests/data/README.md)."""

import csv
from pathlib import Path

from speedmatrix import charts, merge, page
from speedmatrix.cells import parse_size

DATA = Path(__file__).parents[1] / "data"


def seed_rows() -> list[dict[str, str]]:
    """The page's 55 rows, as text."""
    with (DATA / "seed_measurements.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def number(text: str) -> float | None:
    """`9,946.0` → 9946.0; `10.1K` → 10100.0; `823 ms` → 823.0; nothing → None."""
    plain = text.replace(",", "").removesuffix(" ms").removesuffix(" s")
    if not plain:
        return None
    return float(plain[:-1]) * 1000 if plain.endswith("K") else float(plain)


PLAN = {
    "request_tokens": 12288,
    "kv_needed_tokens": 12288,
    "kv_capacity_tokens": 900_000,
    "max_context_tokens": 262144,
    "max_output_tokens": 4096,
}
MEASURE = {"duration_s": 30, "max_output_tokens": 4096, "prompts": "unique", "seed": 0, "prefill_repeats": 3}


def cell(**changes) -> dict:
    """A valid decode cell, changed as asked."""
    return {
        "schema": 1, "server": "vllm", "phase": "decode", "context_tokens": 8192, "concurrency": 1, "repeat": 1,
        "status": "valid", "reason": None, "flags": [], "figures": None, "prefill": None,
        "plan": PLAN,
        "prompt": None,
        "measure": MEASURE,
        "client": None,
        "started_at": "2026-09-27T19:00:00Z", "finished_at": "2026-09-27T19:59:00Z", "attempt": 1,
        "method": 1, "tool_version": "0.1.0", "fingerprint": "0123456789ab", "identity": {},
        "kv_capacity_tokens": 900_000, "boot_id": None, "arrivals": None,
    } | changes  # fmt: skip


def seed_cells() -> list[dict]:
    """One cell for each of the page's rows."""
    return [_seed_cell(row) for row in seed_rows()]


def _seed_cell(row: dict[str, str]) -> dict:
    context, lanes = parse_size(row["context"]), int(row["requests_at_once"])
    figures = {
        "total_tok_s": number(row["total_tok_s"]),
        "request_tok_s": number(row["per_request_tok_s"]),
        "ttft_ms": number(row["ttft"]),
        "ttft_kind": "unknown",
        "itl_ms": number(row["time_between_tokens"]),
        "active_avg": number(row["average_active_requests"]),
        "completed": int(row["completed_requests"] or 0),
        "output_tokens": number(row["output_tokens"]),
        "measured_s": number(row["measured_for"]),
    }
    over = row["status"] == "Over capacity"
    needed = lanes * (context + 4096)
    return cell(
        phase="prefill" if row["phase"] == "Prefill" else "decode",
        context_tokens=context,
        concurrency=lanes,
        status="over_capacity" if over else "valid",
        imported="llm-inference-bench v0.6.2, a published page of 27 September 2026",
        measure=MEASURE | {"prefill_mode": "Measured during decode warm-up"},
        started_at="2026-09-27T19:59:00Z",
        reason=f"needs {needed:,} tokens of KV cache, the server has 900,000" if over else None,
        figures=None if over else figures,
        plan=PLAN | {"kv_needed_tokens": needed},
    )


HEALTH = {
    "server": "vllm", "engine": "vllm", "url": "http://127.0.0.1:8000", "error": None,
    "ready_s": None, "first_answer_s": 1.5,
    "checked_at": "2026-09-27T19:00:00Z", "attached": False, "stated": [],
    "fingerprint": "0123456789ab", "identity": {},
    "launch_command": (DATA / "seed_launch_command.txt").read_text(encoding="utf-8").strip(),
    "facts": {
        "version": "0.30.1rc1.dev147+g02ee13be2", "commit": "02ee13be2107", "build": "cuda-13.2", "revision": "main",
        "model": "nvidia/DeepSeek-V4.1-Flash-NVFP4", "quantization": "NVFP4+MXFP4+FP8", "backend": "cuda",
        "repository": "github.com/vllm-project/vllm", "parameters": None, "size_bytes": None,
    },
    "capacity": {
        "kv_tokens": 900_000, "kv_source": "config", "max_context_tokens": 262144, "max_concurrency": None, "ranks": 1,
    },
    "requests": {
        "endpoint": "completions", "prompt": "ids", "limit_field": "max_tokens", "left_out": [], "sized_by": "server",
    },
    "hardware": {
        "type": "Discrete GPU", "gpu": "RTX PRO 6000 Blackwell Server Edition", "gpu_count": 8,
        "vram": "768 GB (8 × 96 GB)", "cpu": None, "cores": None, "memory_gb": None, "os": "linux", "kernel": None,
        "stated": False,
    },
}  # fmt: skip


def odd_cells() -> list[dict]:
    """The page's cells, some of them with every other status that there is."""
    cells = seed_cells()
    cells[8] |= {"flags": ["unsteady"], "evidence": {"unsteady": "210.0 tok/s in the first half, 190.0 in the second"}}
    cells[10] |= {"status": "limited", "reason": "ran 6 of 8: the server ran no more requests at once"}
    cells[12] |= {"status": "failed", "reason": "a stream stalled for over 60 s", "figures": None}
    cells[-1] |= {"status": "over_context", "reason": "needs more than the limit"}
    return cells


def page_input(cells: list[dict], **more) -> page.PageInput:
    """What the page of these cells is made of, as the workflow makes it."""
    table = merge.table(cells)
    data = charts.Data(table, charts.NO_SERIES)
    svgs, specs = charts.pictures(data)
    told = {
        "cells": cells, "healths": {"vllm": HEALTH}, "planned": len(cells), "runtime": charts.runtime(),
        "charts": svgs, "specs": specs,
        "csv": merge.csv_text(table), "config": "servers: {}\n", "author": "@author",
    }  # fmt: skip
    return page.PageInput(**told | more)
