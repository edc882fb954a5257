"""What the page says in words, each sentence generated from what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from speedmatrix import merge
from speedmatrix.cells import size_name
from speedmatrix.findings.finding import Level
from speedmatrix.formats import counted, listed, span, speed, utc
from speedmatrix.matrix import Place, Results, status_of

STATUS = {
    "valid": ("●", "Valid"),
    "flagged": ("▲", "Flagged"),
    "limited": ("◐", "Limited"),
    "over_capacity": ("▨", "Over capacity"),
    "over_context": ("▧", "Over context"),
    "failed": ("✕", "Failed"),
}
NOT_RUN = ("over_capacity", "over_context")
LEVEL: dict[Level, tuple[str, str]] = {
    "problem": ("✕", "Problem"),
    "warning": ("▲", "Look at this"),
    "note": ("◆", "Note"),
    "good": ("✓", "Good to know"),
}

# In the page's order. The heat map is for slides: the page has the decode matrix itself.
CHART_CAPTIONS = {
    "total-tok-s": "Total output speed over requests at once, a panel each context; the other contexts are grey behind it.",
    "request-vs-total": "What one reader gets against what the server yields: each point says how many requests it is of.",
    "ttft": "Time to first token when all requests start at once, both axes logarithmic.",
    "tokens-per-joule": "Output tokens for each joule that the GPUs took (the CPU packages where there are none).",
    "power": "Power and clock of each device over the fastest cell; the window begins at 0 s.",
    "prefill": "Prompt tokens processed per second, one request at a time, prompt not in the cache.",
}


def counts(cells: list[dict[str, Any]]) -> list[tuple[int, str, str, str]]:
    """(number, status, glyph, word) of each status that occurs."""
    found = Counter(status_of(cell) for cell in cells)
    return [(found[status], status, *STATUS[status]) for status in STATUS if found[status]]


def verdict(servers: list[Results]) -> str:
    """One sentence: how many cells are what, and the best figures."""
    cells = [cell for results in servers for cell in results.cells]
    if not cells:
        return "Nothing is measured yet."
    parts = [f"{number} {word.lower()}" for number, _, _, word in counts(cells)]
    best = [_best(results, named=len(servers) > 1) for results in servers]
    places = sum(len(results.places) for results in servers)
    runs = "" if places == len(cells) else f" measured in {counted(len(cells), 'run')}"
    return "; ".join([f"{counted(places, 'cell')}{runs}: {listed(parts)}", *filter(None, best)]) + "."


def _best(results: Results, named: bool) -> str:
    decode = [place for place in results.decode if place.sound]
    prefill = [place.get("total_tok_s") or 0.0 for place in results.prefill if place.sound]
    parts = []
    if decode:
        peak = max(decode, key=lambda place: place.get("total_tok_s") or 0)
        parts.append(f"up to {speed(peak.get('total_tok_s'))} tok/s in total ({label(peak)})")
    if alone := [place.get("total_tok_s") or 0.0 for place in results.alone]:
        parts.append(f"{span(alone, speed)} tok/s for one request alone")
    if prefill:
        parts.append(f"prefill at {span(prefill, speed)} tok/s")
    return f"{results.name}: {', '.join(parts)}" if named and parts else ", ".join(parts)


def label(place: Place) -> str:
    """`8K × 64`; of prefill `prefill 8K`."""
    context = size_name(place.context)
    return f"prefill {context}" if place.phase == "prefill" else f"{context} × {place.concurrency}"


def cell_label(page: Any, cell: dict[str, Any]) -> str:
    """A single cell's name for readers, with its server where there are several, and its repeat."""
    server = f"{cell['server']}, " if len(page.servers) > 1 else ""
    repeat = f", repeat {cell['repeat']}" if cell["repeat"] > 1 else ""
    return f"{server}{label(Place((cell,)))}{repeat}"


def raised(cells: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """(flag, the cells that carry it), in the order in which flags occur."""
    names = dict.fromkeys(name for cell in cells for name in cell["flags"])
    return [(name, [cell for cell in cells if name in cell["flags"]]) for name in names]


def searchable(cell: dict[str, Any]) -> str:
    """What the table's filter looks in: server, phase, context, requests as `x16`, status and flags."""
    phase = "prefill" if cell["phase"] == "prefill" else "sustained decode"
    context, lanes = size_name(cell["context_tokens"]), f"x{cell['concurrency']}"
    return " ".join([cell["server"], phase, context, lanes, status_of(cell), cell["status"], *cell["flags"]]).lower()


def anchor(place: Place) -> str:
    """The id of the place on the page: `vllm-decode-8K-x64`."""
    return f"{place.server}-{merge.cell_name(place.cells[0]).partition('.')[0]}"


def measured_when(cells: list[dict[str, Any]]) -> str:
    """`Measured <a moment, or from when to when>`."""
    times = sorted(cell["finished_at"] for cell in cells)
    if not times:
        return "Nothing measured yet"
    first, last = utc(times[0]), utc(times[-1])
    if first != last and first[:-11] == last[:-11]:  # on one day
        first = first.removesuffix(" UTC")
        last = last[-9:]
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


def extent(results: Results) -> str:
    """`4 contexts (512–4K) × 4 concurrency levels (1–8) · prefill at 512, 1K, …`."""
    parts = []
    if results.decode:
        contexts, lanes = results.contexts, results.concurrency
        parts.append(
            f"{counted(len(contexts), 'context')} ({_range(size_name(contexts[0]), size_name(contexts[-1]))}) × "
            f"{counted(len(lanes), 'concurrency level')} ({_range(lanes[0], lanes[-1])})"
        )
    if results.prefill:
        parts.append("prefill at " + ", ".join(size_name(place.context) for place in results.prefill))
    return " · ".join(parts)


def _range(first: object, last: object, dash: str = "–") -> str:
    return str(first) if first == last else f"{first}{dash}{last}"


def partial(page: Any) -> str:
    """How far a sweep is whose page is made from what is there."""
    failed = sum(cell["status"] == "failed" for cell in page.cells)
    done = len(page.cells) - failed
    return f"{done} of {page.planned} cells are measured{f', {failed} failed' if failed else ''}."


def ttft_note(servers: Iterable[Results]) -> str:
    """What the TTFT under the matrix is, by what was measured."""
    cells = [cell for one in servers for place in one.decode for cell in place.measured]
    kinds = {cell["figures"].get("ttft_kind") or "unknown" for cell in cells}
    meaning = {
        "cold": "TTFT is cold: at most 1 % of the prompts came from the prefix cache. It is the median over requests that all started at once: each waited for its own prefill and for those that the server did before it.",
        "warm": "TTFT is warm: the prompts came from the prefix cache, so it mostly excludes prefill.",
        "mixed": "TTFT is mixed: part of the prompts came from the prefix cache.",
        "unknown": "Whether prompts came from a prefix cache is unknown: nothing tells, so TTFT may exclude prefill.",
    }
    if len(kinds) == 1:
        return meaning.get(next(iter(kinds)), meaning["unknown"])
    return "TTFT is not of one kind here: each cell says cold, warm, mixed or unknown in the table." if kinds else ""


def why_not(cell: dict[str, Any]) -> list[str]:
    """What decided against running a cell, in lines: `needs 81,920`, `has 73,728`; the reason of one that failed."""
    plan = cell["plan"]
    if cell["status"] == "over_capacity":
        return [f"needs {plan['kv_needed_tokens']:,}", f"has {plan['kv_capacity_tokens']:,}"]
    if cell["status"] == "over_context":
        return [f"needs {plan['request_tokens']:,}", f"limit {plan['max_context_tokens']:,}"]
    return [cell["reason"]] if cell["reason"] else []


def shortfall(cell: dict[str, Any]) -> str:
    """The same in one line: `needs 81,920, has 73,728`."""
    return ", ".join(why_not(cell))


def remarks(cell: dict[str, Any]) -> str:
    """What stands beside a cell's status: why it was not run, failed or was limited, and its flags."""
    why = "" if cell["status"] == "valid" else shortfall(cell)
    return ", ".join(filter(None, [why, *cell["flags"]]))


def repeats(place: Place) -> str:
    """`median of 3 repeats, 320.1–331.4`; how many failed; nothing for a single one."""
    if len(place.cells) == 1:
        return ""
    if not place.measured:
        return f"{len(place.cells)} repeats"
    totals = [cell["figures"]["total_tok_s"] for cell in place.measured]
    of = f"{len(place.measured)} of {len(place.cells)}" if len(place.measured) < len(place.cells) else len(place.cells)
    failed = len(place.cells) - len(place.measured)
    return f"{f'{failed} failed; ' if failed else ''}median of {of} repeats, {span(totals, speed)}"


def version(cells: list[dict[str, Any]]) -> str:
    """` 0.1.0, method 2`, each version that measured any of the cells; nothing where there is none."""
    found = dict.fromkeys(
        f"{cell['tool_version']}, method {cell['method']}" for cell in cells if not cell.get("imported")
    )
    return f" {listed(found)}" if found else ""


def made_with(cells: list[dict[str, Any]]) -> str:
    """What this tool did for the page: measured its cells, or only showed what other tools had measured."""
    found = version(cells)
    return f"Measured with speed-matrix{found}" if found else "Made with speed-matrix"
