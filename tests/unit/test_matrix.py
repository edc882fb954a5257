"""Places: repeats become one, with medians and the word of the worst."""

from speedmatrix import matrix
from tests.unit import samples


def cell(total: float | None, repeat: int = 1, **more) -> dict:
    figures = None if total is None else {"total_tok_s": total, "completed": repeat, "ttft_kind": "cold"}
    return samples.cell(repeat=repeat, figures=figures, **more)


def test_figures_are_medians_over_the_repeats_that_have_any():
    place = matrix.Place((cell(10), cell(30, 2), cell(None, 3, status="failed"), cell(20, 4)))
    assert place.get("total_tok_s") == 20 and place.get("completed") == 2 and place.figures["ttft_kind"] == "cold"
    assert place.status == "valid" and place.sound


def test_words_that_differ_are_mixed():
    odd = cell(20, 2)
    odd["figures"]["ttft_kind"] = "warm"
    assert matrix.Place((cell(10), odd)).figures["ttft_kind"] == "mixed"


def test_the_status_is_the_worst_of_those_that_were_measured():
    assert matrix.Place((cell(10), cell(10, 2, flags=["unsteady"]))).status == "flagged"
    assert matrix.Place((cell(10, flags=["unsteady"]), cell(10, 2, status="limited"))).status == "limited"
    assert matrix.Place((cell(None, status="over_capacity"),)).status == "over_capacity"


def test_results_are_in_order_whatever_the_cells_were_in():
    cells = [samples.cell(context_tokens=c, concurrency=n) for c, n in ((2048, 1), (1024, 8), (1024, 2))]
    results = matrix.results("vllm", samples.HEALTH, [*cells, samples.cell(server="other")], {})
    assert [(p.context, p.concurrency) for p in results.decode] == [(1024, 2), (1024, 8), (2048, 1)]
    assert results.contexts == [1024, 2048] and results.concurrency == [1, 2, 8]
    assert results.at(1024, 8).cells == (cells[1],) and results.at(2048, 8) is None
