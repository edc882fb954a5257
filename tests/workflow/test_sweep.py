"""The workflow, for real: a sweep from nothing, and what is measured again after each kind of change."""

import csv
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from speedmatrix import arrivals, hardware, integration, metrics
from tests.workflow.conftest import PAGE, ROOT, Sweep

COLUMNS = """
    server phase context_tokens concurrency repeat status reason flags total_tok_s request_tok_s ttft_ms ttft_kind
    itl_ms itl_p90_ms itl_p99_ms active_avg completed output_tokens measured_s prompt_tokens cached_share token_source
    server_tok_s server_diff_pct
"""


def cells(sweep: Sweep) -> dict[str, dict]:
    return {path.stem: json.loads(path.read_text()) for path in sweep.directory.glob("results/cells/tiny/*.json")}


def test_every_cell_has_its_status(finished):
    sweep, _ = finished
    status = {name: cell["status"] for name, cell in cells(sweep).items()}
    assert len(status) == 8
    # 4 × (1024 + 4096) = 20,480 tokens do not fit into 20,224; all else does.
    assert status.pop("decode-1K-x4") == "over_capacity"
    assert set(status.values()) == {"valid"}


def test_cells_are_valid_by_their_schema(finished):
    schema = json.loads((ROOT / "config/schemas/cell.schema.json").read_text())
    for cell in cells(finished[0]).values():
        jsonschema.validate(cell, schema)


def test_figures_reconcile(finished):
    for name, cell in cells(finished[0]).items():
        figures = cell["figures"]
        if not name.startswith("decode") or not figures:
            continue
        assert figures["measured_s"] == 1
        assert figures["total_tok_s"] == pytest.approx(figures["output_tokens"] / figures["measured_s"])
        assert figures["active_avg"] == pytest.approx(cell["concurrency"], rel=0.02)
        per_request = figures["request_tok_s"] * figures["active_avg"]
        assert per_request == pytest.approx(figures["total_tok_s"], rel=0.02)
        assert figures["prompt_tokens"] == cell["context_tokens"]
        assert (figures["ttft_kind"], figures["token_source"]) == ("cold", "usage")
        assert figures["cached_share"] * cell["context_tokens"] < 4  # the opening token, and a letter or two by chance


def test_the_servers_own_count_agrees(finished):
    for name, cell in cells(finished[0]).items():
        if name.startswith("decode") and cell["figures"]:
            # The counters are read within some ms of the edges of a window of 1 s, hence not closer than this.
            assert abs(cell["figures"]["server_diff_pct"]) < 5, name


def test_figures_come_again_from_the_kept_arrivals(finished):
    for name, cell in cells(finished[0]).items():
        if name.startswith("decode") and cell["figures"]:
            again = metrics.decode(arrivals.load(finished[0].cell(name).with_name(cell["arrivals"])))
            kept = {key: cell["figures"][key] for key in again}
            assert again == pytest.approx(kept)


def test_prompts_are_exact_and_no_two_attempts_share_one(finished):
    prompts = [cell["prompt"] for cell in cells(finished[0]).values() if cell["prompt"]]
    assert len({prompt["nonce"] for prompt in prompts}) == len(prompts) == 7
    for cell in cells(finished[0]).values():
        if cell["phase"] == "prefill":
            assert [r["prompt_tokens"] for r in cell["prefill"]["repeats"]] == [cell["context_tokens"]] * 2
            assert (
                max(r["cached_tokens"] for r in cell["prefill"]["repeats"]) <= 1
            )  # the opening token, which all share


def test_cells_ran_in_the_configs_order_one_at_a_time(finished):
    order = ["prefill-256", "prefill-1K", *(f"decode-{context}-x{n}" for context in ("256", "1K") for n in (1, 2, 4))]
    kept = cells(finished[0])
    times = [(kept[name]["started_at"], kept[name]["finished_at"]) for name in order]
    assert times == sorted(times)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(times))


def test_a_line_as_each_cell_ends(finished):
    lines = [line for line in finished[1].splitlines() if line.startswith("[") and "/8] tiny " in line]
    assert len(lines) == 8
    assert lines[0].startswith("[1/8] tiny prefill 256: valid · ") and " left" in lines[0]
    assert "over capacity · needs 20,480 tokens of KV cache, the server has 20,224" in lines[7]


def test_the_table_has_every_cell_with_the_promised_columns(finished):
    with (finished[0].directory / "results/measurements.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:24] == COLUMNS.split()
    assert list(rows[0])[24:26] == ["started_at", "fingerprint"]
    kept = cells(finished[0])
    for row in rows:
        name = f"{row['phase']}-{'1K' if row['context_tokens'] == '1024' else row['context_tokens']}"
        name += f"-x{row['concurrency']}" if row["phase"] == "decode" else ""
        figures = kept.pop(name)["figures"]
        if figures is None:
            assert (row["total_tok_s"], row["ttft_ms"]) == ("", "")
        else:
            assert float(row["total_tok_s"]) == pytest.approx(figures["total_tok_s"], rel=1e-6)
    assert not kept


def test_each_cell_has_telemetry_or_says_why_not(finished):
    complete = []
    for name, cell in cells(finished[0]).items():
        told = cell["telemetry"]
        if not cell["figures"]:
            assert told is None
            continue
        assert told["reason"] or all(told[key] is not None or told["absent"][key] for key in integration.FIGURES), name
        if told["server_memory_max_bytes"] and told["cpu_load_avg_pct"]:
            complete.append(name)
            assert told["server_memory_max_bytes"] > 20e6  # the engine, found by its tag
            assert 0 < told["cpu_load_avg_pct"] < 100.1
            rows = list(csv.DictReader(finished[0].cell(name).with_name(told["series"]).open()))
            inside = [row for row in rows if row["device"] == "host" and 0 <= float(row["t_s"]) < told["window_s"]]
            assert abs(len(inside) - told["samples"]) <= 1  # seconds are rounded in the table
            assert float(rows[0]["t_s"]) <= 0 and float(rows[-1]["t_s"]) >= told["window_s"]
    # A prefill here may be over before three samples were taken, and a busy machine may hold a sampler up.
    assert [name for name in complete if name.startswith("decode")]


def test_the_hardware_is_this_hosts_inventory(finished):
    (path,) = finished[0].directory.glob("results/servers/tiny/*/health.json")
    health = json.loads(path.read_text())
    assert set(hardware.KEYS) <= set(health["hardware"])
    assert health["hardware"]["os_name"] and health["hardware"]["threads"] == os.cpu_count()
    assert "at_rest" not in health["identity"]["hardware"]


def test_a_price_measures_nothing_anew(sweep):
    before = sweep.attempts()
    sweep.config["servers"]["tiny"]["price_per_hour"] = 3.6
    code, output = sweep.run("results/measurements.csv")
    assert code == 0, output
    assert sweep.attempts() == before
    with (sweep.directory / "results/measurements.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        speed = row["total_tok_s"] if row["phase"] == "decode" else ""
        # 3.6 an hour is 0.001 a second: 1,000 for a million seconds.
        assert (
            row["price_per_mtok"] == ""
            if not speed
            else float(row["price_per_mtok"]) * float(speed) == pytest.approx(1000)
        )


def test_charts_as_specs_and_pictures(finished):
    folder = finished[0].directory / "results/charts"
    for name in ("total-tok-s", "matrix", "request-vs-total", "ttft", "prefill"):
        assert "vega-lite" in json.loads((folder / f"{name}.json").read_text())["$schema"]
        assert (folder / f"{name}.svg").read_text().startswith("<svg")
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_holds_the_table_as_it_is_and_the_summary_the_same_facts(finished):
    results = finished[0].directory / "results"
    page, table = (results / "report.html").read_text(), (results / "measurements.csv").read_text()
    held = re.search(r'<script type="application/json" id="measurements-csv">(.*?)</script>', page, re.S)[1]
    assert json.loads(held) == table
    summary = (results / "report.md").read_text()
    assert "| context | 1 | 2 | 4 |" in summary and "tok/s in total" in summary


def test_snakemakes_own_report_has_page_table_and_charts_with_captions(sweep):
    code, output = sweep.run("results/report.html", "--report", str(sweep.directory / "own.html"))
    assert code == 0, output
    own = (sweep.directory / "own.html").read_text()
    for said in ("All cells, a row each.", "Vega-Lite spec and a PNG", "results/report.html"):
        assert said in own, said


def test_no_process_is_left(finished):
    assert finished[0].wait_for_end(2) == []


def test_a_second_run_has_nothing_to_do_and_starts_no_server(sweep):
    before, launches = sweep.attempts(), sweep.launches()
    code, output = sweep.run()
    assert code == 0 and "Nothing to be done" in output
    assert sweep.attempts() == before and sweep.launches() == launches


@pytest.mark.fault("a cell deleted", "only it is measured; table and page follow")
def test_a_deleted_cell_alone_is_measured_again(sweep):
    before = sweep.attempts()
    page = (sweep.directory / "results/report.html").read_text()
    sweep.cell("decode-256-x2").unlink()
    code, output = sweep.run(PAGE)
    assert code == 0, output
    assert sweep.measured_since(before) == ["decode-256-x2"]
    assert (sweep.directory / "results/report.html").read_text() != page


@pytest.mark.fault("a context added, removed, added back", "only new cells are measured")
def test_a_context_more_costs_only_its_cells_and_one_less_nothing(sweep):
    before = sweep.attempts()
    sweep.config["matrix"]["decode"]["contexts"] = [256, 512, "1K"]
    code, output = sweep.run()
    assert code == 0, output
    assert sweep.measured_since(before) == ["decode-512-x1", "decode-512-x2", "decode-512-x4"]
    before = sweep.attempts()
    sweep.config["matrix"]["decode"]["contexts"] = [256, "1K"]
    code, output = sweep.run()
    assert code == 0, output
    assert sweep.attempts() == before
    table = (sweep.directory / "results/measurements.csv").read_text()
    assert len(table.splitlines()) == 9 and ",512," not in table
    sweep.config["matrix"]["decode"]["contexts"] = [256, 512, "1K"]
    assert sweep.run()[0] == 0
    assert sweep.attempts() == before
    assert len((sweep.directory / "results/measurements.csv").read_text().splitlines()) == 12


def test_requests_that_end_inside_the_window_are_a_result_like_any_other(sweep):
    sweep.config["measure"]["max_output_tokens"] = 200
    sweep.config["matrix"] = {"prefill": {"contexts": [256]}, "decode": {"contexts": [256], "concurrency": [2]}}
    code, output = sweep.run()
    assert code == 0, output
    cell = json.loads(sweep.cell("decode-256-x2").read_text())
    assert cell["status"] == "valid" and "prefill_in_window" in cell["flags"]
    assert cell["figures"]["completed"] >= 2 and cell["figures"]["restarts"] >= 2


def test_what_the_config_states_of_a_server_counts_from_the_next_run_on(sweep):
    sweep.config["servers"]["tiny"] |= {"capacity": {"kv_tokens": 9000}, "facts": {"backend": "abacus"}}
    sweep.config["matrix"] = {"prefill": {"contexts": [256]}, "decode": {"contexts": ["1K"], "concurrency": [1, 2]}}
    code, output = sweep.run(PAGE)
    assert code == 0, output
    # 1 × and 2 × (1024 + 4096) tokens, of which 9,000 hold only the first.
    status = [json.loads(sweep.cell(f"decode-1K-x{lanes}").read_text())["status"] for lanes in (1, 2)]
    assert status == ["valid", "over_capacity"]
    assert "abacus" in (sweep.directory / "results/report.html").read_text()


def test_a_longer_window_leaves_prefill_alone(sweep):
    before = sweep.attempts()
    sweep.config["measure"]["duration_s"] = 0.5
    assert sweep.run()[0] == 0
    assert sweep.measured_since(before) == sorted(
        f"decode-{context}-x{n}" for context in ("256", "1K") for n in (1, 2, 4)
    )


def test_a_failed_start_and_the_way_back_cost_nothing(sweep):
    before = sweep.attempts()
    command = sweep.config["servers"]["tiny"]["launch"]["command"]
    sweep.config["servers"]["tiny"]["launch"]["command"] = [
        "{python}",
        "-c",
        "print('no GPU here'); raise SystemExit(3)",
    ]
    code, output = sweep.run()
    assert code != 0
    assert "tiny ended at start with code 3" in output and "no GPU here" in output
    assert "Traceback" not in output
    sweep.config["servers"]["tiny"]["launch"]["command"] = command
    code, output = sweep.run()
    assert code == 0 and "Nothing to be done" in output
    assert sweep.attempts() == before


@pytest.mark.fault("a cell that failed", "the page says why; the next run tries it, and only it")
def test_a_failed_cell_is_shown_and_only_it_is_tried_again(sweep):
    sweep.cell("decode-256-x4").unlink()
    before = sweep.attempts()
    # A stall limit shorter than any token's gap fails the cell; the other cells keep theirs.
    failing = Sweep(sweep.directory, {**sweep.config, "measure": {**sweep.config["measure"], "stall_s": 1e-6}})
    code, output = failing.run("results/cells/tiny/decode-256-x4.json")
    assert code == 0, output
    assert "failed" in output and "a stream stalled" in output
    failed = json.loads(sweep.cell("decode-256-x4").read_text())
    assert (failed["status"], failed["figures"]) == ("failed", None)
    assert sweep.run("partial")[0] == 0
    assert "1 cell failed" in (sweep.directory / "results/report.partial.html").read_text()
    between = sweep.attempts()
    assert sweep.measured_since(before) == ["decode-256-x4"]
    code, output = sweep.run()
    assert code == 0, output
    assert sweep.measured_since(between) == ["decode-256-x4"]
    again = json.loads(sweep.cell("decode-256-x4").read_text())
    assert (again["status"], again["attempt"]) == ("valid", 2)
    code, output = sweep.run()
    assert "Nothing to be done" in output


@pytest.mark.fault("a cell's JSON edited by hand into nonsense", "named in one line, never used")
def test_a_damaged_cell_is_named_in_one_line(sweep):
    path = sweep.cell("decode-256-x1")
    path.write_text(path.read_text()[:200])
    code, output = sweep.run()
    assert code != 0
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert "decode-256-x1.json can't be read (not valid JSON): delete it and run again" in line
    assert "Traceback" not in output


@pytest.mark.fault("a wrong config", "one line with the key and what is allowed; nothing is launched")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"measure": {"duration": 3}}, "measure: unknown key 'duration'"),
        ({"matrix": {"decode": {"contexts": ["8KB"]}}}, "'8KB' is no size"),
    ],
)
def test_a_wrong_config_is_one_line_and_nothing_is_launched(sweep, change, said):
    launches = sweep.launches()
    sweep.config |= change
    code, output = sweep.run()
    assert code != 0 and sweep.launches() == launches
    (line,) = [line for line in output.splitlines() if line.startswith("config: ")]
    assert said in line
    assert "Traceback" not in output


def planned(sweep: Sweep) -> str:
    """What `make plan` says of the sweep's config as it is now."""
    sweep.config_file.write_text(yaml.safe_dump(sweep.config))
    script, snakefile = str(ROOT / "scripts/plan.py"), str(ROOT / "Snakefile")
    told = subprocess.run(
        [sys.executable, script, "--configfile", str(sweep.config_file), "--snakefile", snakefile],
        cwd=sweep.directory,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


def test_plan_measures_nothing(sweep):
    sweep.config["matrix"]["decode"]["contexts"] = [256, 512, "1K"]
    before = sweep.attempts()
    told = planned(sweep)
    assert "3 of 11 cells would be measured (tiny/decode-512-x1, tiny/decode-512-x2, tiny/decode-512-x4)" in told
    assert "decode        3" in told or "decode 3" in " ".join(told.split())
    assert "measured anew" not in told
    assert sweep.attempts() == before


def test_plan_counts_the_figures_that_a_change_would_replace(sweep):
    sweep.config["measure"]["duration_s"] = 2
    # Six decode cells, of which the one over capacity has no figures.
    told = planned(sweep)
    assert "6 of 8 cells would be measured" in told
    assert "5 of them have figures already and would be measured anew; those stay in results/history." in told
