"""What the page says of the server itself: hardware, engine, run, provenance, as (name, value, stated) rows."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from speedmatrix import merge
from speedmatrix.formats import count, counted, listed, utc
from speedmatrix.matrix import Results

Row = tuple[str, Any, bool]

OPTIONS = {
    "tensor_parallel": "Tensor parallel",
    "pipeline_parallel": "Pipeline parallel",
    "data_parallel": "Data parallel",
    "context_parallel": "Context parallel",
    "attention_backend": "Attention backend",
    "kv_cache_type": "KV cache type",
    "prefix_caching": "Prefix caching",
    "max_num_seqs": "Most sequences at once",
}
_ENGINE = {
    "version": "Version",
    "quantization": "Quantization",
    "backend": "Backend",
    "repository": "Repository",
    "build": "Build",
    "commit": "Commit",
}
_HARDWARE: dict[str, tuple[str, str]] = {
    "type": ("Type", "{}"),
    "gpu": ("GPU", "{}"),
    "gpu_count": ("GPU count", "{}"),
    "vram": ("VRAM", "{}"),
    "driver": ("Driver", "{}"),
    "cuda": ("CUDA", "up to {}"),
    "cpu": ("CPU", "{}"),
    "cores": ("Cores", "{}"),
    "threads": ("Threads", "{}"),
    "numa_nodes": ("NUMA nodes", "{}"),
    "memory_gb": ("Memory", "{} GB"),
    "governor": ("CPU governor", "{}"),
    "os": ("OS", "{}"),
    "os_name": ("Distribution", "{}"),
    "kernel": ("Kernel", "{}"),
    "container": ("Container", "{}"),
    "vm": ("Virtual machine", "{}"),
    "python": ("Python", "{}"),
}
_EACH_GPU: dict[str, tuple[str, str]] = {
    "compute_capability": ("Compute capability", "{}"),
    "power_limit_w": ("Power limit", "{:.0f} W"),
    "power_default_w": ("Default limit", "{:.0f} W"),
    "sm_clock_max_mhz": ("Highest SM clock", "{} MHz"),
    "mem_clock_max_mhz": ("Highest memory clock", "{} MHz"),
    "pcie_generation": ("PCIe generation", "{}"),
    "pcie_width": ("PCIe lanes", "{}"),
    "nvlinks": ("NVLink links", "{}"),
    "ecc": ("ECC", "{}"),
    "mig": ("MIG", "{}"),
}
_HIDDEN = ("gpus", "gpus_used", "gpus_absent", "at_rest", "architecture", "governor_driver", "cpu_max_mhz", "boost")
_SWITCH = {True: "on", False: "off"}


def hardware(results: Results) -> list[Row]:
    """The machine; `stated` where the config says it, since the server is elsewhere."""
    told = results.health["hardware"]
    stated = bool(told.get("stated"))
    rows = [(name, form.format(told[key]), stated) for key, (name, form) in _HARDWARE.items() if told.get(key)]
    listed_gpus = told.get("gpus")
    if isinstance(listed_gpus, list):
        place = next((at for at, row in enumerate(rows) if row[0] == "CPU"), len(rows))
        rows[place:place] = _each_gpu(listed_gpus)
    if stated:
        own = [key for key in told if key not in (*_HARDWARE, *_HIDDEN, "stated")]
        rows += [(key.replace("_", " "), told[key], True) for key in own if told[key] not in (None, "")]
    return rows


def _each_gpu(gpus: list[dict[str, Any]]) -> list[Row]:
    """What the GPUs have in common, or each value that occurs among them."""
    rows: list[Row] = []
    for key, (name, form) in _EACH_GPU.items():
        values = [gpu[key] for gpu in gpus if gpu.get(key) is not None]
        shown = dict.fromkeys(_SWITCH[value] if isinstance(value, bool) else form.format(value) for value in values)
        if shown:
            rows.append((name, " / ".join(shown), False))
    return rows


def engine(results: Results) -> list[Row]:
    """The engine and how it runs the model."""
    health = results.health
    facts, stated, capacity = health["facts"], set(health["stated"]), health["capacity"]
    limit = capacity["max_context_tokens"]
    rows = [
        ("Engine", health["engine"], False),
        *((name, facts.get(key), key in stated) for key, name in _ENGINE.items()),
        ("KV capacity", _kv_capacity(capacity), capacity["kv_source"] == "config"),
        ("Context limit", f"{count(limit)} tokens" if limit else None, False),
        *((name, facts.get(key), key in stated) for key, name in OPTIONS.items()),
        ("Ready after", _ready(health), False),
    ]
    return [row for row in rows if row[1]]


def _kv_capacity(capacity: dict[str, Any]) -> str:
    if not capacity["kv_tokens"]:
        return str(capacity["kv_source"])
    ranks = f" over {capacity['ranks']} data-parallel ranks" if capacity.get("ranks", 1) > 1 else ""
    source = "" if capacity["kv_source"] == "config" else f" ({capacity['kv_source']})"
    return f"{count(capacity['kv_tokens'])} tokens{ranks}{source}"


def _ready(health: dict[str, Any]) -> str | None:
    """How long its start took and its first answer; None for a server that was there already."""
    if not health["ready_s"]:
        return None
    return f"{health['ready_s']:.1f} s, its first answer {health['first_answer_s']:.1f} s later"


def run(results: Results) -> list[Row]:
    """What was measured, and how."""
    facts, stated = results.health["facts"], set(results.health["stated"])
    decode = results.decode[0].cells[0] if results.decode else None
    prefill = results.prefill[0].cells[0] if results.prefill else None
    tools = dict.fromkeys(
        cell.get("imported") or f"speed-matrix {cell['tool_version']} · method {cell['method']}"
        for cell in results.cells
    )
    rows = [
        ("Served model", facts.get("model"), "model" in stated),
        ("Revision", facts.get("revision"), "revision" in stated),
        ("Parameters", facts.get("parameters"), "parameters" in stated),
        ("Benchmark tool", listed(tools), False),
        ("Decode test", "Fixed duration" if decode else None, False),
        ("Prefill mode", _prefill_mode(prefill), False),
        ("Time per measurement", f"{decode['measure']['duration_s']:g} s" if decode else None, False),
        ("Max output", f"{count(decode['measure']['max_output_tokens'])} tokens" if decode else None, False),
        ("Prompts", _prompts(results), False),
        ("Requests", _requests(results.health), False),
    ]
    return [row for row in rows if row[1]]


def _prefill_mode(cell: dict[str, Any] | None) -> str | None:
    if cell is None:
        return None
    if cell.get("imported"):
        return str(cell["measure"].get("prefill_mode") or "As the source measured it")
    repeats = cell["measure"]["prefill_repeats"]
    return f"Measured alone, one request at a time, median of {repeats}"


def _prompts(results: Results) -> str | None:
    """`unique, seed 0, token ids`: what was sent, and what counted it."""
    prompts = [cell["prompt"] for cell in [*results.cells][::-1] if cell["prompt"]]
    if not prompts:
        return None
    prompt = prompts[0]
    form = {"ids": "token ids", "text": "text", "chat": "chat messages"}[prompt["form"]]
    by = {"server": "the server's tokenizer", "tokenizers": "a stated tokenizer", "usage": "the server's usage"}
    return f"{prompt['kind']}, seed {prompt['seed']}, {form} sized by {by[prompt['sized_by']]}"


def _requests(health: dict[str, Any]) -> str | None:
    """What the server refuses of a request; None where it takes all."""
    told = health["requests"]
    refused = [*told["left_out"], *(["max_tokens"] if told["limit_field"] != "max_tokens" else [])]
    return f"without {', '.join(refused)}: the server refuses it" if refused else None


def short(results: Results) -> list[tuple[str, Any]]:
    """The facts that a short summary needs."""
    if not results.health["facts"]:
        return []
    machine = {name: value for name, value, _ in hardware(results)}
    gpus = f"{machine['GPU']} × {machine.get('GPU count', 1)}" if machine.get("GPU") else machine.get("CPU")
    own = {name: value for name, value, _ in [*engine(results), *run(results)]}
    kept = ("Served model", "Engine", "Version", "Quantization", "KV capacity", "Time per measurement", "Max output")
    return [("Hardware", gpus), *((name, own[name]) for name in kept if name in own)]


def provenance(results: Results) -> list[dict[str, Any]]:
    """One entry for each fingerprint: what it stands for, how many cells, when, by what tool, attempts."""
    groups: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for cell in results.cells:
        groups[cell["fingerprint"]].append(cell)
    return [_origin(fingerprint, cells) for fingerprint, cells in groups.items()]


def _origin(fingerprint: str | None, cells: list[dict[str, Any]]) -> dict[str, Any]:
    times = sorted([*(cell["started_at"] for cell in cells), *(cell["finished_at"] for cell in cells)])
    retried = sum(cell["attempt"] > 1 for cell in cells)
    boots = {cell["boot_id"] for cell in cells if cell["boot_id"]}
    identity = next((cell["identity"] for cell in cells if cell["identity"]), None) or {}
    return {
        "fingerprint": fingerprint or "none: no server was reached",
        "cells": counted(len(cells), "cell"),
        "from": utc(times[0]),
        "to": utc(times[-1]),
        "tool": listed(dict.fromkeys(f"speed-matrix {c['tool_version']}, method {c['method']}" for c in cells)),
        "source": listed(dict.fromkeys(c["imported"] for c in cells if c.get("imported"))),
        "starts": counted(len(boots), "server start") if boots else "",
        "retried": f"{counted(retried, 'cell')} measured at a later attempt" if retried else "",
        "kept": "raw arrivals kept" if any(cell["arrivals"] for cell in cells) else "no raw arrivals",
        "client": identity.get("client_host") or "",
    }


def cell_file(cell: dict[str, Any]) -> str:
    """Where the cell's JSON lies, from the page."""
    return f"cells/{cell['server']}/{merge.cell_name(cell)}.json"
