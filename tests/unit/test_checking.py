"""What was written down is held against itself: each kind of disagreement is found, and nothing else."""

import copy
import math

import pytest

from speedmatrix import METHOD, VERSION, checking, figures, merge, page, validity
from speedmatrix.arrivals import SECOND, Run, Stream
from speedmatrix.digests import digest
from tests.unit import samples

MS = SECOND // 1000
READINGS = [
    {"t_s": 0.0},
    {"t_s": 2.0, "generated": 100.0, "running": 2.0},
    {"t_s": 4.0, "generated": 500.0, "running": 2.0},
    {"t_s": 6.0},
]


def steady_run(**more) -> Run:
    """Two lanes of 100 tok/s each for 5 s, first token after 100 ms; the window is [2 s, 4 s)."""
    lanes = [
        Stream(n, n, 0, [100 * MS + 10 * MS * i for i in range(500)], [1] * 500, prompt_tokens=8192, cached_tokens=0,
               source="usage")
        for n in range(2)
    ]  # fmt: skip
    run = Run(lanes, 2 * SECOND, 4 * SECOND, [MS], 0, 0.2, None, READINGS, 16384)
    for name, value in more.items():
        setattr(run, name, value)
    return run


def decode_cell(run: Run, **changes) -> dict:
    """The cell that `run` gives, made as a sweep makes it."""
    identity = {"engine": "vllm", "method": METHOD}
    plan = {"request_tokens": 12288, "kv_needed_tokens": 24576, "max_output_tokens": 4096}
    prompt = {"kind": "unique", "form": "ids", "sized_by": "server", "seed": 0, "nonce": "0" * 16, "sha256": "0"}
    return samples.cell(
        concurrency=2, figures=figures.decode(run), client=validity.client_state(run), plan=samples.PLAN | plan,
        prompt=prompt, method=METHOD, tool_version=VERSION, identity=identity, fingerprint=digest(identity),
    ) | changes  # fmt: skip


def test_a_cell_that_its_arrivals_give_has_no_difference():
    run = steady_run()
    cell = decode_cell(run)
    # 2 lanes × 100 tok/s; first token 100 ms after the start; the server counted 400 tokens in 2 s.
    told = [cell["figures"][name] for name in ("total_tok_s", "ttft_ms", "itl_ms", "server_tok_s")]
    assert told == pytest.approx([200, 100, 10, 200])
    assert checking.differences(cell, run) == [] and checking.contradictions(cell) == []


@pytest.mark.parametrize("name", sorted(figures.decode(steady_run())))
def test_every_single_figure_is_held_against_the_arrivals(name):
    run = steady_run()
    cell = decode_cell(run)
    kept = cell["figures"][name]
    cell["figures"] = cell["figures"] | {name: "other" if isinstance(kept, str) else (kept or 0) * (1 + 1e-8) + 1e-6}
    (line,) = checking.differences(cell, run)
    assert line.startswith(f"{name} is ") and "its arrivals give " in line


def test_rounding_is_no_difference():
    run = steady_run()
    cell = decode_cell(run)
    total = cell["figures"]["total_tok_s"]
    cell["figures"] = cell["figures"] | {"total_tok_s": math.nextafter(total, math.inf)}
    assert checking.differences(cell, run) == []
    cell["figures"] = cell["figures"] | {"total_tok_s": total * (1 + 1e-8)}
    assert checking.differences(cell, run) == ["total_tok_s is 200.000002, its arrivals give 200"]


def test_an_arrival_that_was_moved_or_taken_out_shows():
    cell, other = decode_cell(steady_run()), steady_run()
    del other.streams[0].t_ns[250], other.streams[0].tokens[250]
    said = "\n".join(checking.differences(cell, other))
    assert "output_tokens is 400, its arrivals give 399" in said
    assert "its arrivals are of 1 requests" in "\n".join(checking.differences(cell, Run(other.streams[:1], 0, 1)))


def test_flags_status_and_the_clients_state_are_held_against_the_arrivals():
    run = steady_run()
    hidden = steady_run(lags_ns=[900 * MS])
    said = checking.differences(decode_cell(run), hidden)
    assert "client.lag_p99_ms is 1, its arrivals give 900" in said
    assert "its flags are none, its arrivals give client_bound" in said
    assert checking.differences(decode_cell(run, flags=["unsteady"]), run) == [
        "its flags are unsteady, its arrivals give none"
    ]
    assert checking.differences(decode_cell(run, flags=["repeating"]), run) == []  # texts are not kept
    assert checking.differences(decode_cell(run, flags=["unsteady"], tool_version="0"), run) == []
    fewer = steady_run(ran=1)
    limited = decode_cell(fewer, status="limited")
    assert checking.differences(limited, fewer) == []
    assert "it is valid, and 1 of 2 requests ran at once" in checking.differences(limited | {"status": "valid"}, fewer)


def test_a_buffered_cell_has_no_latencies_and_agrees():
    run = steady_run()
    for one in run.streams:  # four events at each moment
        one.t_ns = [one.t_ns[i - i % 4] for i in range(len(one.t_ns))]
    cell = decode_cell(run, flags=["buffered"])
    cell["figures"] = cell["figures"] | dict.fromkeys(checking.metrics.LATENCIES)
    assert checking.differences(cell, run) == []


def test_of_an_older_file_only_what_it_tells_is_compared():
    run = steady_run()
    old = Run(run.streams, run.t0_ns, run.t1_ns)
    assert checking.differences(decode_cell(run), old) == []
    limited = decode_cell(steady_run(ran=1), status="limited")
    assert checking.differences(limited, old) == []
    limited["figures"] = limited["figures"] | {"total_tok_s": 7.0}
    assert checking.differences(limited, old) == ["total_tok_s is 7, its arrivals give 200"]


def test_a_prefill_cells_repeats_are_held_against_the_arrivals():
    streams = [Stream(0, n, 0, [200 * MS * n], [1], prompt_tokens=1000, cached_tokens=0) for n in (1, 2, 3)]
    run = Run(streams, readings=[{"t_s": 0.0}, {"t_s": 1.0}], prompted=4000)
    told, details = figures.prefill(run)
    assert told["total_tok_s"] == 2500  # 1000 tokens in 0.4 s is the median of 5000, 2500, 1666
    cell = samples.cell(phase="prefill", figures=told, prefill=details, method=METHOD)
    assert checking.differences(cell, run) == []
    wrong = copy.deepcopy(cell)
    wrong["prefill"]["repeats"][1]["ttft_ms"] = 300.0
    assert checking.differences(wrong, run) == ["prefill.repeats.1.ttft_ms is 300, its arrivals give 400"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fingerprint": "0123456789ab", "identity": {"engine": "vllm"}}, "its fingerprint is 0123456789ab"),
        ({"status": "valid", "figures": None}, "it is valid without figures"),
        ({"status": "failed"}, "it is failed and has figures"),
        ({"status": "over_capacity", "figures": None}, "it is over_capacity, and by its plan it fits"),
        ({"status": "over_context", "figures": None}, "it is over_context, and by its plan it fits"),
        ({"plan": samples.PLAN | {"kv_needed_tokens": 900_001}}, "it was measured, and by its plan it does not fit"),
        ({"plan": samples.PLAN | {"request_tokens": 262_145}}, "it was measured, and by its plan it does not fit"),
    ],
)
def test_what_cant_be_true_together_is_said(changes, said):
    (line,) = checking.contradictions(decode_cell(steady_run()) | changes)
    assert line.startswith(said)


@pytest.mark.parametrize("status", ["over_capacity", "over_context"])
def test_a_cell_that_does_not_fit_by_its_numbers_is_right(status):
    plan = samples.PLAN | {"kv_needed_tokens": 900_001, "request_tokens": 262_145}
    assert checking.contradictions(samples.cell(status=status, plan=plan, identity=None)) == []


CELLS = samples.seed_cells()
TABLE = merge.csv_text(merge.table(CELLS))


def test_a_table_of_its_cells_is_right_in_whatever_order():
    head, *rows = TABLE.splitlines(keepends=True)
    assert checking.table(TABLE, CELLS, CELLS, {}) == []
    assert checking.table(head + "".join(reversed(rows)), CELLS, CELLS, {}) == []
    # A row of a cell that the config no longer has, whose file is still there.
    assert checking.table(TABLE, CELLS, CELLS[:-1], {}) == []


def test_hostile_text_in_a_cell_agrees_with_its_row():
    cells = [samples.cell(status="failed", reason='=cmd("x"),\r\n"y" </script><script>alert(1)</script>')]
    text = merge.csv_text(merge.table(cells))
    assert checking.table(text, cells, cells, {}) == []
    assert checking.embedded_table(page_of(text)) == text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace(",199.8,", ",299.8,"), ["vllm decode 257024 x2: total_tok_s is '299.8', the cell"]),
        (lambda text: text.replace("over_capacity", "valid", 1), ["status is 'valid', the cell says 'over_capacity'"]),
        (lambda text: text.rsplit("\n", 2)[0] + "\n", ["vllm decode 257024 x128 is measured and not in it"]),
        (lambda text: text + text.splitlines()[-1] + "\n", ["vllm decode 257024 x128 stands twice in it"]),
        (lambda text: text + TABLE.splitlines()[-1].replace(",128,", ",512,") + "\n", ["of which there is no cell"]),
        (lambda text: text.replace("total_tok_s", "tok_s", 1), ["it has other columns than this version writes"]),
        (lambda text: "", ["it has other columns"]),
        (lambda text: text.splitlines()[0] + "\n", ["it has no rows"]),
        (lambda text: text + '"never closed', ["it is no CSV"]),
    ],
)
def test_a_table_that_says_otherwise_is_found_row_by_row(change, said):
    found = checking.table(change(TABLE), CELLS, CELLS, {})
    assert len(found) == len(said) and all(part in line for part, line in zip(said, found, strict=True)), found


def page_of(csv: str) -> str:
    return f'<html><script type="application/json" id="measurements-csv">{page.script_json(csv)}</script></html>'


def test_the_table_in_a_page_is_read_back_as_it_was():
    for text in (TABLE, "", 'a,"<!-- </script>"\n', "é\u2028"):
        assert checking.embedded_table(page_of(text)) == text
    real = page.render(page.PageInput([], {}, 0, csv=TABLE))
    assert checking.embedded_table(real) == TABLE


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("<html><p>an older page</p></html>", None),
        ('<p id="measurements-csv">"x"</p>', None),
        ('<script id="measurements-csv">{"no": "text"}</script>', ""),
        ('<script id="measurements-csv">not json</script>', ""),
        ('<script id="measurements-csv">' + "[" * 100_000 + "</script>", ""),
        ('<script>"measurements-csv"</script><script id="measurements-csv">"a"</script><script>"b"</script>', "a"),
    ],
)
def test_a_page_without_a_table_is_told_from_one_whose_table_is_broken(text, told):
    assert checking.embedded_table(text) == told


def test_a_finding_is_one_line():
    line = checking.Finding("results/a.json", "failed (two\nlines)", "run again").line
    assert line == "results/a.json: failed (two lines): run again"
    assert checking.Finding("a", "b", off=False).line == "note: a: b"
