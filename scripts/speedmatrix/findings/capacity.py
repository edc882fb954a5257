"""Where the KV cache or the model's context limit ends the matrix."""

from __future__ import annotations

from speedmatrix.cells import size_name
from speedmatrix.findings.finding import Finding, Found
from speedmatrix.formats import count, counted
from speedmatrix.matrix import Place, Results


def _with(results: Results, status: str) -> tuple[Place, ...]:
    return tuple(place for place in results.places if place.status == status)


def fitting(place: Place) -> int | None:
    """How many requests of the place's context, each with its full output, the KV cache holds; None if unknown.

    KV tokens // (context + max output), or with one prompt for all (KV tokens - context) // max output.
    """
    plan = place.shown["plan"]
    tokens, output = plan["kv_capacity_tokens"], plan["max_output_tokens"]
    if not tokens or output is None:
        return None
    if place.shown["measure"].get("prompts") == "shared":
        return max(0, int((tokens - place.context) // output)) if output else None
    return int(tokens // (place.context + output))


def _ends(results: Results) -> Found:
    over = _with(results, "over_capacity")
    if not over:
        return
    first = {place.context: place for place in reversed(results.decode)}
    holds = [(context, fits) for context, place in sorted(first.items()) if (fits := fitting(place)) is not None]
    shown = ", ".join(f"{fits:,} at {size_name(context)}" for context, fits in holds)
    plan = over[0].shown["plan"]
    yield Finding(
        "note",
        f"The KV cache of {count(plan['kv_capacity_tokens'])} tokens ends the matrix: {counted(len(over), 'cell')} of"
        f" {len(results.decode)} need more and were not run.",
        f"It holds this many requests at once, each with {count(plan['max_output_tokens'])} tokens of output: {shown}.",
        "A KV cache of fewer bits, more memory for it, or a smaller measure.max_output_tokens if your answers are"
        " shorter.",
        over,
    )


def _unknown(results: Results) -> Found:
    capacity = results.health.get("capacity")
    if capacity and not capacity["kv_tokens"] and results.decode:
        yield Finding(
            "note",
            "The KV cache's size is unknown, so no cell was skipped.",
            f"{str(capacity['kv_source'])[:1].upper()}{str(capacity['kv_source'])[1:]}. A cell over it would have"
            " queued or"
            " preempted requests: look for limited and preempted cells.",
            f"Say servers.{results.name}.capacity.kv_tokens if you know it.",
        )


def _context_limit(results: Results) -> Found:
    over = _with(results, "over_context")
    if over:
        limit = over[0].shown["plan"]["max_context_tokens"]
        yield Finding(
            "note",
            f"Over the context limit of {count(limit)} tokens: {counted(len(over), 'cell')}, not run.",
            "Prompt and full output of one request are more than the server takes.",
            "Lower measure.max_output_tokens, or start the server with a larger limit if the model allows it.",
            over,
        )


RULES = [_ends, _unknown, _context_limit]
