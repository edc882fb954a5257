"""Findings: each from the least that shows it, with its own numbers by arithmetic, and silent without."""

import pytest

from speedmatrix import findings, matrix
from tests.unit import samples

HEALTH = samples.HEALTH


def cell(context: int, lanes: int, total: float, **more) -> dict:
    figures = {
        "total_tok_s": total, "request_tok_s": total / lanes, "itl_ms": 1000 * lanes / total, "ttft_ms": 100.0 * lanes,
        "ttft_kind": "cold",
    }  # fmt: skip
    told = {"context_tokens": context, "concurrency": lanes, "figures": figures | more.pop("figures", {})}
    return samples.cell(**told | more)


def row(context: int, *totals: float) -> list[dict]:
    """Cells at 1, 2, 4, … requests with these totals."""
    return [cell(context, 2**n, total) for n, total in enumerate(totals)]


def find(cells: list[dict], health=HEALTH, **slo) -> list[findings.Finding]:
    return findings.find(matrix.results("vllm", health, cells, slo))


def claims(cells: list[dict], level: str | None = None, **more) -> list[str]:
    return [one.claim for one in find(cells, **more) if level in (None, one.level)]


def the(cells: list[dict], start: str, **more) -> findings.Finding:
    (found,) = [one for one in find(cells, **more) if start in one.claim]
    return found


def test_the_peak_is_the_highest_total_and_never_of_a_cell_that_may_not_be_one():
    cells = row(1024, 100, 180, 170)
    assert "Peak: 180.0 tok/s in total at 1K × 2, 90.0 each." in claims(cells, "good")
    for flag in ("prefill_in_window", "client_bound", "server_disagrees", "buffered"):
        odd = [*cells, cell(1024, 8, 999, flags=[flag])]
        assert "Peak: 180.0 tok/s in total at 1K × 2, 90.0 each." in claims(odd, "good")
    assert "Peak: 999.0 tok/s in total at 1K × 8, 124.9 each." in claims(
        [*cells, cell(1024, 8, 999, flags=["unsteady"])]
    )


@pytest.mark.parametrize(("last", "told"), [(95.1, False), (94.9, True)])
def test_a_drop_is_over_five_percent_less_than_with_fewer_requests(last, told):
    assert any("less in total" in claim for claim in claims(row(1024, 50, 100, last))) is told


def test_a_comparison_says_how_its_cells_are_flagged():
    cells = [*row(1024, 50, 100), cell(1024, 4, 60, flags=["unsteady"])]
    assert the(cells, "less in total").meaning.endswith("Cells of this comparison are flagged unsteady.")
    assert "flagged" not in the(row(1024, 50, 100, 60), "less in total").meaning


def test_drops_at_the_same_step_are_one_finding_with_the_worst_one_s_numbers():
    # 2 → 4: 200 → 150 is 25 % less, 100 → 60 is 40 % less.
    found = the(row(1024, 110, 200, 150) + row(2048, 90, 100, 60), "less in total")
    assert found.level == "warning"
    assert found.claim == "4 requests at once yield 25–40 % less in total than 2, at 1K and 2K."
    assert found.meaning.startswith("60.0 against 100.0 tok/s at 2K") and "400 ms instead of 200 ms" in found.meaning
    assert found.advice.startswith("Measure 3 requests to find where")
    assert [(place.context, place.concurrency) for place in found.places] == [(1024, 4), (2048, 4)]


def test_the_knee_is_where_nine_tenths_of_the_highest_total_are_reached():
    found = the(row(1024, 50, 90, 98, 100), "little throughput")
    assert found.claim == "From 2 requests at once on, more add latency and little throughput, at 1K."
    assert "At 1K: 90.0 tok/s with 2, 100.0 with 8" in found.meaning
    assert "from 22.22 ms to 80.00 ms" in found.meaning  # 1000 × 2 / 90 and 1000 × 8 / 100
    assert not any("little throughput" in claim for claim in claims(row(1024, 50, 89, 100)))  # only the last reaches it


@pytest.mark.parametrize(("last", "told"), [(110, False), (111, True)])
def test_throughput_that_still_grows_at_the_end(last, told):
    assert any("still grew" in claim for claim in claims(row(1024, 50, 100, last))) is told


def test_how_many_get_twenty_tokens_a_second_each():
    # 1K: 60, 30, 20 each: all. 2K: 50, 20, 19.9: up to 2. 4K: 19 alone: none.
    cells = row(1024, 60, 60, 80) + row(2048, 50, 40, 79.6) + row(4096, 19)
    assert (
        "20 tok/s for each request: up to 4 requests (the most measured) at 1K; up to 2 requests at 2K; none at 4K."
        in claims(cells, "note")
    )


def test_the_goal_of_the_config():
    # TTFT is 100 ms a request, time between tokens 1000 × requests ÷ total.
    found = the(row(1024, 50, 100, 100), "TTFT of at most", ttft_ms=400, itl_ms=20)
    assert found.claim == "TTFT of at most 400 ms and time between tokens of at most 20 ms: up to 2 requests at 1K."
    never = the(row(1024, 50, 100), "TTFT of at most", ttft_ms=99)
    assert never.level == "warning" and never.claim == "No number of requests gets TTFT of at most 99 ms."
    assert not any("TTFT of at most" in claim for claim in claims(row(1024, 50)))


def test_what_a_longer_context_costs_each_request():
    # Alone 100 → 90. Two at once: 200 / 2 → 150 / 2.
    found = the(row(1024, 100, 200, 300) + row(8192, 90, 150), "a longer context")
    assert found.claim == (
        "What a longer context does to each request's speed: −10 % from 1K to 8K with 1 request,"
        " −25 % from 1K to 8K with 2 requests."
    )
    assert "With 2 requests: 100.0 → 75.0 tok/s each, 10.00 ms → 13.33 ms between tokens" in found.meaning
    assert not any("a longer context" in claim for claim in claims(row(1024, 100, 200)))


def test_it_is_told_at_the_most_requests_that_a_context_four_times_as_long_was_measured_with():
    # With 4 requests only 1K and 2K were measured, which is no long way.
    found = the(row(1024, 100, 200, 300) + row(2048, 99, 190, 280) + row(4096, 90, 160), "a longer context")
    assert "with 4 requests" not in found.claim and "−20 % from 1K to 4K with 2 requests." in found.claim


def test_a_difference_within_the_noise_is_no_finding():
    rough = cell(1024, 4, 90, flags=["unsteady"])
    assert not any("less in total" in claim for claim in claims([*row(1024, 50, 100), rough]))
    assert any("less in total" in claim for claim in claims([*row(1024, 50, 100), rough | {"flags": []}]))
    # Repeats of 80, 90 and 100 lie 22 % apart: 10 % less than 100 says nothing.
    repeats = [cell(1024, 4, total, repeat=n) for n, total in enumerate((80, 90, 100), 1)]
    assert not any("less in total" in claim for claim in claims([*row(1024, 50, 100), *repeats]))


def test_a_drop_that_more_requests_overcome_is_no_reason_for_a_cap_or_a_knee():
    cells = row(1024, 50, 100, 60, 150)
    assert "Still more requests overcome it: 1K × 8." in the(cells, "less in total").meaning
    assert "8 requests yield +50 % against 2, the best before" in the(cells, "still grew").meaning
    assert not any("add latency" in claim for claim in claims(cells))
    # Back to where it was is no growth.
    assert not any("still grew" in claim for claim in claims(row(1024, 100, 60, 100)))


def test_a_limited_cell_is_no_peak_and_no_passed_limit():
    cells = [*row(1024, 50, 100), cell(1024, 4, 400, status="limited", reason="ran 2 of 4")]
    assert "Peak: 100.0 tok/s in total at 1K × 2, 50.0 each." in claims(cells)
    assert any(claim.endswith("up to 2 requests at 1K.") for claim in claims(cells))


def test_one_failed_repeat_is_told():
    cells = [cell(1024, 1, 10), samples.cell(context_tokens=1024, repeat=2, status="failed", reason="it was cut")]
    found = the(cells, "failed")
    assert found.level == "problem" and found.claim == "1 cell failed: it was cut"
    assert found.meaning == "1K × 1: the figures are of the other repeats."


def test_speeds_that_do_not_make_the_total():
    # 4 × 22 = 88 of 100: 12 % off. 4 × 23 = 92: 8 %.
    odd = cell(1024, 4, 100, figures={"request_tok_s": 22.0})
    found = the([odd], "reconcile")
    assert "At 1K × 4, 4 requests at 22.0 tok/s make 88.0, and the total is 100.0" in found.meaning
    assert "Peak: 100.0 tok/s in total at 1K × 4." in claims([odd])
    assert not any("reconcile" in claim for claim in claims([cell(1024, 4, 100, figures={"request_tok_s": 23.0})]))


def test_where_the_kv_cache_ends_and_what_would_fit():
    plan = {"kv_capacity_tokens": 30_000, "kv_needed_tokens": 40_960, "max_output_tokens": 1024}
    over = samples.cell(context_tokens=4096, concurrency=8, status="over_capacity", plan=samples.PLAN | plan)
    found = the([*row(1024, 100), over | {"concurrency": 1}, over], "The KV cache of 30,000")
    assert found.claim.endswith("2 cells of 3 need more and were not run.")
    # 30,000 // (4,096 + 1,024) = 5; the 1K row plans with 900,000 // (1,024 + 4,096) = 175
    assert found.meaning.endswith("175 at 1K, 5 at 4K.")


def test_one_prompt_for_all_needs_the_cache_once():
    plan = samples.PLAN | {"kv_capacity_tokens": 10_000, "max_output_tokens": 1000}
    shared = samples.cell(context_tokens=4000, plan=plan, measure=samples.MEASURE | {"prompts": "shared"})
    assert findings.capacity.fitting(matrix.Place((shared,))) == 6  # (10,000 − 4,000) // 1,000


def test_an_unknown_kv_cache_is_said():
    unknown = HEALTH | {"capacity": HEALTH["capacity"] | {"kv_tokens": None, "kv_source": "unknown: not told"}}
    assert "The KV cache's size is unknown, so no cell was skipped." in claims(row(1024, 10), "note", health=unknown)


def test_failures_and_flags_come_first_with_reason_and_advice():
    failed = [samples.cell(status="failed", reason="a stream stalled", concurrency=n) for n in (1, 2)]
    flagged = cell(2048, 1, 50, flags=["unsteady", "client_bound"])
    found = find([*failed, flagged])
    assert [one.level for one in found[:3]] == ["problem", "warning", "warning"]
    assert found[0].claim == "2 cells failed: a stream stalled" and "8K × 1 and 8K × 2" in found[0].meaning
    kept_out = next(one for one in found if "client_bound" in one.claim)
    assert "kept out of peaks" in kept_out.meaning
    assert not any(one.claim.startswith("Peak") for one in found)


def test_a_limited_cell_is_a_warning():
    found = the([cell(1024, 16, 100, status="limited", reason="ran 8 of 16")], "fewer requests")
    assert found.level == "warning" and "At 16: ran 8 of 16." in found.meaning


def test_repeats_that_differ():
    # 90, 100, 110: (110 − 90) / 100 = 20 %.
    cells = [cell(1024, 1, total, repeat=n) for n, total in enumerate((90, 110, 100), 1)]
    assert the(cells, "Repeats").claim == "Repeats of the same cell differ by up to 20 % (1K × 1)."
    assert "Peak: 100.0 tok/s in total at 1K × 1." in claims(cells)
    calm = [cell(1024, 1, total, repeat=n) for n, total in enumerate((98, 100, 102), 1)]
    assert not any("Repeats" in claim for claim in claims(calm))


@pytest.mark.parametrize(("kind", "prompts", "told"), [
    ("cold", "unique", None), ("warm", "shared", None), ("warm", "unique", "TTFT is warm at 1K × 1."),
    ("mixed", "unique", "TTFT is mixed at 1K × 1."),
    ("unknown", "unique", "Whether TTFT is cold is unknown at 1K × 1."),
])  # fmt: skip
def test_prompts_that_were_not_cold_are_said_unless_it_was_asked_for(kind, prompts, told):
    one = cell(1024, 1, 10, figures={"ttft_kind": kind}, measure=samples.MEASURE | {"prompts": prompts})
    assert [claim for claim in claims([one]) if "TTFT is" in claim] == ([told] if told else [])


def test_figures_of_another_tool_are_marked():
    found = the([cell(1024, 1, 10, imported="a page")], "imported")
    assert found.claim == "1 cell imported: a page."


def test_the_servers_own_count_where_it_agrees():
    cells = [cell(1024, n, 10 * n, figures={"server_diff_pct": diff}) for n, diff in ((1, -0.5), (2, 0.04))]
    assert "The server's own count of tokens agrees within 0.5 % in 2 cells." in claims(cells, "good")


def test_the_published_page_s_own_faults_are_found():
    """What that page left unremarked: a drop of 36 %, and the capacity behind its 21 dashes."""
    found = find(samples.seed_cells())
    drop = next(one for one in found if "less in total" in one.claim)
    # 206.9/323.7, 207.4/326.9 and 211.1/326.0: 36.1 %, 36.6 % and 35.2 % less.
    assert drop.claim == "16 requests at once yield 35–37 % less in total than 8, at 8K, 16K and 32K."
    assert found.index(drop) <= 1
    odd = next(one for one in found if "reconcile" in one.claim)
    assert "8K × 64" in odd.claim and "64 requests at 6.0 tok/s make 384.0, and the total is 597.2" in odd.meaning
    assert any("21 cells of 48 need more" in one.claim for one in found)
    assert any(one.claim == "Peak: 597.2 tok/s in total at 8K × 64." for one in found)


def test_every_finding_but_good_news_says_what_it_means_and_what_to_try():
    cells = [
        *samples.seed_cells(),
        cell(1024, 1, 50, flags=["unsteady"]),
        samples.cell(context_tokens=512, status="failed", reason="x"),
    ]
    for one in find(cells, ttft_ms=500):
        assert one.claim.endswith((".", "x"))
        assert one.level == "good" or (one.meaning.endswith(".") and one.advice.endswith("."))
