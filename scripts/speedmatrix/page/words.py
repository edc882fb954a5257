"""What the page says in words, each sentence generated from what was measured."""

from __future__ import annotations

from collections import Counter
from typing import Any

from speedmatrix.cells import size_name
from speedmatrix.page.formats import utc

STATUS = {
    "valid": ("●", "Valid"),
    "flagged": ("▲", "Flagged"),
    "limited": ("◐", "Limited"),
    "over_capacity": ("▨", "Over capacity"),
    "over_context": ("▧", "Over context"),
    "failed": ("✕", "Failed"),
}

CHART_CAPTIONS = {
    "total-tok-s": "Total output speed over the number of simultaneous requests, a line for each context length.",
    "matrix": "The decode matrix as a heat map, colour on a log scale.",
    "request-vs-total": "Each point is a cell: further right a single reader gets more, further up the server yields more.",
    "ttft": "Median time to first token when all requests start at once, on a log scale.",
    "prefill": "Prompt tokens processed per second, one request at a time, prompt not in the cache.",
}

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

GLOSSARY = [
    ("Context", "Prompt tokens of a request, as the server's own usage confirms them; 8K = 8 × 1,024."),
    ("Requests at once", "Requests kept busy side by side; when one ends, the next starts in its place at once."),
    (
        "Prefill tok/s",
        "Prompt tokens ÷ time to first token of one request on an otherwise idle server; the median of its repeats.",
    ),
    (
        "Total tok/s",
        "Output tokens inside the measured window ÷ the window's seconds, over all requests. Tokens that arrive"
        " in one event are spread evenly over the time since the event before; the part inside the window counts.",
    ),
    (
        "Per request tok/s",
        "Median over requests of output tokens ÷ seconds spent decoding in the window; waiting for a first token is not in it.",
    ),
    (
        "TTFT",
        "Time to first token: from the moment the request starts to be written, on a connection that stands, to the"
        " first generated token. Median over the first request of each lane, all started at once.",
    ),
    ("Time between tokens", "Median over requests of seconds decoding ÷ tokens."),
    ("Average active requests", "Time average over the window of requests that were decoding."),
    (
        "KV capacity",
        "Tokens that the server's KV cache holds over all requests. A cell that needs more is not run: over capacity.",
    ),
    ("—", "No such figure for this cell: not run, not defined for prefill, or not told by the server."),
    ("Flagged", "Measured and valid, but something about it must be known when it is read: see the flag's sentence."),
]


def status_of(cell: dict[str, Any]) -> str:
    """The cell's status as the page calls it: a valid cell with flags is flagged."""
    return "flagged" if cell["status"] == "valid" and cell["flags"] else str(cell["status"])


def counts(cells: list[dict[str, Any]]) -> list[tuple[int, str, str, str]]:
    """(number, status, glyph, word) of each status that occurs."""
    found = Counter(status_of(cell) for cell in cells)
    return [(found[status], status, *STATUS[status]) for status in STATUS if found[status]]


def measured_when(cells: list[dict[str, Any]]) -> str:
    """`Measured <a moment, or from when to when>`."""
    times = sorted(cell["finished_at"] for cell in cells)
    if not times:
        return "Nothing measured yet"
    first, last = utc(times[0]), utc(times[-1])
    return f"Measured {_range(first, last, ' – ')}"


def title(healths: dict[str, dict[str, Any]]) -> str:
    """`<model> on <hardware>`, a server's name where that is all that is known; several that differ, by name."""
    heads = {_model_on_hardware(name, health) for name, health in healths.items()}
    if len(heads) > 1:
        return f"{len(healths)} servers: {', '.join(healths)}"
    return heads.pop() if heads else "Speed test matrix"


def _model_on_hardware(name: str, health: dict[str, Any]) -> str:
    facts, machine = health.get("facts") or {}, health.get("hardware") or {}
    where = machine.get("gpu") or machine.get("cpu")
    many = f" ×{machine['gpu_count']}" if str(machine.get("gpu_count") or 1) != "1" else ""
    return f"{facts.get('model') or name} on {where}{many}" if where else str(facts.get("model") or name)


def extent(section: Any) -> str:
    """`4 contexts (512–4K) × 4 concurrency levels (1–8) · prefill at 512, 1K, …` of a server's section."""
    parts = []
    if section.contexts and section.concurrency:
        contexts, lanes = section.contexts, section.concurrency
        parts.append(
            f"{_counted(len(contexts), 'context')} ({_range(size_name(contexts[0]), size_name(contexts[-1]))}) × "
            f"{_counted(len(lanes), 'concurrency level')} ({_range(lanes[0], lanes[-1])})"
        )
    if section.prefill:
        parts.append("prefill at " + ", ".join(size_name(cell["context_tokens"]) for cell in section.prefill))
    return " · ".join(parts)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _range(first: object, last: object, dash: str = "–") -> str:
    return str(first) if first == last else f"{first}{dash}{last}"


def kv_capacity(capacity: dict[str, Any]) -> str:
    """`900,000 tokens`, with its ranks; or why it is unknown."""
    if not capacity["kv_tokens"]:
        return str(capacity["kv_source"])
    ranks = f" over {capacity['ranks']} data-parallel ranks" if capacity["ranks"] > 1 else ""
    return f"{capacity['kv_tokens']:,} tokens{ranks}"


def ready(health: dict[str, Any]) -> str | None:
    """How long its start took and its first answer; None for a server that was there already."""
    if not health["ready_s"]:
        return None
    return f"{health['ready_s']:.1f} s, its first answer {health['first_answer_s']:.1f} s later"


def options(facts: dict[str, Any]) -> list[tuple[str, Any]]:
    """(name, value) of what the launch says of how the model is run."""
    return [(name, facts[key]) for key, name in OPTIONS.items() if facts.get(key)]


def prompts(section: Any) -> str | None:
    """`unique, seed 0, token ids`: what was sent, and what counted it."""
    measured = [cell for cell in (section.decode or section.prefill) if cell["prompt"]]
    if not measured:
        return None
    prompt = measured[0]["prompt"]
    form = {"ids": "token ids", "text": "text", "chat": "chat messages"}[prompt["form"]]
    by = {"server": "the server's tokenizer", "tokenizers": "a stated tokenizer", "usage": "the server's usage"}
    return f"{prompt['kind']}, seed {prompt['seed']}, {form} sized by {by[prompt['sized_by']]}"


def requests(health: dict[str, Any]) -> str | None:
    """What the server refuses of a request; None where it takes all."""
    told = health["requests"]
    refused = [*told["left_out"], *(["max_tokens"] if told["limit_field"] != "max_tokens" else [])]
    return f"without {', '.join(refused)}: the server refuses it" if refused else None


def ttft_note(cells: list[dict[str, Any]]) -> str:
    """What the TTFT under the matrix is, by what was measured."""
    kinds = {cell["figures"]["ttft_kind"] for cell in cells if cell["figures"]}
    meaning = {
        "cold": "TTFT is cold: no part of a prompt came from the prefix cache, so it holds the whole prefill of all requests that started at once.",
        "warm": "TTFT is warm: the prompts came from the prefix cache, so it mostly excludes prefill.",
        "mixed": "TTFT is mixed: part of the prompts came from the prefix cache.",
        "unknown": "Whether prompts came from a prefix cache is unknown: the server does not tell, so TTFT may exclude prefill.",
    }
    if len(kinds) == 1:
        return meaning.get(next(iter(kinds)), meaning["unknown"])
    return (
        "TTFT is not of one kind here: each cell says cold, warm, mixed or unknown in the table below." if kinds else ""
    )


def shortfall(cell: dict[str, Any]) -> str:
    """The numbers that decided against running a cell: `needs 81,920 · has 73,728`."""
    plan = cell["plan"]
    if cell["status"] == "over_capacity":
        return f"needs {plan['kv_needed_tokens']:,} · has {plan['kv_capacity_tokens']:,}"
    if cell["status"] == "over_context":
        return f"needs {plan['request_tokens']:,} · limit {plan['max_context_tokens']:,}"
    return cell["reason"] or ""


def remarks(cell: dict[str, Any]) -> str:
    """What stands beside a cell's status: why it was not run, failed or was limited, and its flags."""
    why = "" if cell["status"] == "valid" else shortfall(cell)
    return ", ".join(filter(None, [why, *cell["flags"]]))
