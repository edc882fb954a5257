"""The page: holds what was measured, escapes what a server says, needs no network, is the same each time."""

import html
import re
from html.parser import HTMLParser

import pytest

from speedmatrix import charts, matrix, merge, page
from speedmatrix.page import PageInput, words
from tests.unit import samples


def render(cells: list[dict], **changes) -> str:
    return page.render(given(cells, **changes))


def given(cells: list[dict], **changes) -> PageInput:
    return PageInput(**{"cells": cells, "healths": {"vllm": samples.HEALTH}, "planned": len(cells)} | changes)


def place(*cells: dict) -> matrix.Place:
    return matrix.Place(cells)


def results(*cells: dict) -> matrix.Results:
    return matrix.results("vllm", samples.HEALTH, list(cells), {})


class Tables(HTMLParser):
    """The text of every table row, and what the page would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.loads: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
            self.inside = True
        given = dict(attrs)
        self.loads += [given[key] for key in ("src", "href", "data", "poster") if given.get(key)]

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data


def rows_of(text: str) -> list[list[str]]:
    return [[" ".join(cell.split()) for cell in row] for row in Tables(text).rows]


@pytest.fixture(scope="module")
def seed() -> str:
    return render(samples.seed_cells(), author="@author")


def test_every_row_of_the_published_page_is_there(seed):
    found = [row for row in rows_of(seed) if row[0] in ("Prefill", "Sustained decode")]
    assert len(found) == len(samples.seed_rows()) == 55
    order = {(row[0], row[1], row[2]): row for row in found}
    assert len(order) == 55
    for told in samples.seed_rows():
        row = order[told["phase"], told["context"], told["requests_at_once"]]
        if told["status"] == "Over capacity":
            assert row[3].startswith("▨ Over capacity needs ") and len(row) == 4
            continue
        _phase, context, lanes, status, total, each, ttft, _kind, itl, active, completed, tokens, seconds = row
        assert (context, lanes) == (told["context"], told["requests_at_once"])
        assert status[2:].startswith(told["status"])
        for shown, right in (
            (total, "total_tok_s"),
            (each, "per_request_tok_s"),
            (ttft, "ttft"),
            (tokens, "output_tokens"),
        ):
            assert (None if shown == "—" else samples.number(shown)) == samples.number(told[right])
        for shown, right in (
            (itl, "time_between_tokens"),
            (active, "average_active_requests"),
            (seconds, "measured_for"),
        ):
            assert (None if shown == "—" else samples.number(shown)) == samples.number(told[right])
        assert completed == (told["completed_requests"] or "—")


def test_head_hardware_engine_run_and_command(seed):
    for said in (
        "nvidia/DeepSeek-V4.1-Flash-NVFP4 on RTX PRO 6000 Blackwell Server Edition ×8",
        "6 contexts (8K–251K) × 8 concurrency levels (1–128)",
        "prefill at 8K, 16K, 32K, 64K, 128K, 251K, 256K",
        "by @author", "27 Sep 2026, 19:59 UTC", "768 GB (8 × 96 GB)", "Discrete GPU", "0.30.1rc1.dev147+g02ee13be2",
        "NVFP4+MXFP4+FP8", "cuda-13.2", "02ee13be2107", "github.com/vllm-project/vllm", "Fixed duration", "30 s",
        "4,096 tokens", "--api-key &lt;redacted&gt;", "llm-inference-bench v0.6.2",
    ):  # fmt: skip
        assert said in seed, said


def test_a_page_of_another_tools_figures_does_not_claim_to_have_measured_them(seed):
    assert "Made with speed-matrix." in seed
    assert "Measured with speed-matrix" not in seed
    own = [cell | {"imported": None} for cell in samples.seed_cells()[:1]]
    assert f"Measured with speed-matrix {own[0]['tool_version']}, method {own[0]['method']}." in render(own)


def test_cells_that_were_not_run_show_the_numbers_that_decided(seed):
    # 128 requests of 8,192 + 4,096 tokens.
    assert "needs 1,572,864, has 900,000" in seed
    rows = [row for row in rows_of(seed) if row and row[0] == "251K" and len(row) == 9]
    assert [("Over capacity" in cell) for cell in rows[0][1:]] == [False, False] + [True] * 6


def test_a_capacity_that_is_not_known_is_said_to_be_with_what_to_do():
    why = "unknown: slots may share one pool; say facts.launch_command or capacity.kv_tokens"
    capacity = samples.HEALTH["capacity"] | {"kv_tokens": None, "kv_source": why}
    assert f"<dd>{html.escape(why)}</dd>" in render(
        [samples.cell()], healths={"vllm": samples.HEALTH | {"capacity": capacity}}
    )


def test_a_partial_page_does_not_count_failed_cells_as_measured():
    cells = [samples.cell(), samples.cell(concurrency=2, status="failed", reason="a stream stalled")]
    assert "1 of 3 cells are measured, 1 failed." in render(cells, planned=3)
    assert "1 of 3 cells are measured." in render(cells[:1], planned=3)


def test_counts_by_status(seed):
    assert words.counts(samples.seed_cells()) == [
        (34, "valid", "●", "Valid"),
        (21, "over_capacity", "▨", "Over capacity"),
    ]
    assert "34 valid" in seed and "21 over capacity" in seed


@pytest.mark.fault("a model called `<script>alert(1)</script>`", "shown as text; the CSV still parses")
def test_what_a_server_says_is_text(seed):
    name = "<script>alert(1)</script>\"'&"
    facts = samples.HEALTH["facts"] | {"model": name}
    failed = samples.cell(status="failed", reason=name)
    text = render([failed], healths={"vllm": samples.HEALTH | {"facts": facts}}, author=name, title=None)
    assert "<script>alert" not in text
    assert html.escape(name, quote=False).split("&quot;")[0].split('"')[0] in text
    assert len(re.findall("<script>", text)) == 1


def test_nothing_is_loaded(seed):
    chart = charts.CHARTS["ttft"].draw(charts.Data(merge.table(samples.seed_cells()), charts.NO_SERIES))
    specs, runtime = {"ttft": charts.spec(chart)}, charts.runtime()
    text = render(samples.seed_cells(), charts={"ttft": charts.svg(chart)}, specs=specs, runtime=runtime)
    assert [load for load in Tables(text).loads if not load.startswith("#")] == []
    own = text.replace(runtime, "")
    assert "@import" not in own and not re.search(r"url\((?!#)", own)
    assert "default-src 'none'" in own  # and the browser holds the rest to it


def test_the_same_input_gives_the_same_bytes(seed):
    assert render(samples.seed_cells(), author="@author") == seed


def test_charts_side_by_side_share_no_id():
    one = '<svg width="10" height="5" viewBox="0 0 10 5"><clipPath id="clip0"/><g clip-path="url(#clip0)"/></svg>'
    text = render([], charts={"ttft": one, "prefill": one})
    assert text.count('id="ttft-clip0"') == text.count("url(#prefill-clip0)") == 1
    assert 'id="clip0"' not in text


def test_a_flagged_cell_is_not_called_valid():
    figures = samples.seed_cells()[10]["figures"]
    text = render([samples.cell(figures=figures, flags=["unsteady"])])
    assert "1 flagged" in text and "1 valid" not in text
    assert "halves differ by more than 5 %" in text


@pytest.mark.parametrize(
    ("kinds", "said"),
    [(["cold"], "TTFT is cold"), (["warm"], "TTFT is warm"), (["cold", "warm"], "not of one kind"), ([], "")],
)
def test_the_note_on_ttft_is_of_what_was_measured(kinds, said):
    figures = samples.seed_cells()[10]["figures"]
    cells = [samples.cell(figures=figures | {"ttft_kind": kind}, repeat=n) for n, kind in enumerate(kinds, 1)]
    note = words.ttft_note([results(*cells)])
    assert said in note and bool(note) == bool(said)


def test_failed_cells_and_what_is_missing_are_said_first():
    text = render([samples.cell(status="failed", reason="a stream stalled")], planned=12)
    assert "partial: 0 of 12 cells are measured, 1 failed" in text
    head = text[: text.index("</header>")]
    assert "1 cell failed: a stream stalled" in head


def test_a_limited_cell_says_why_beside_its_speed_and_its_flags():
    figures = samples.seed_cells()[10]["figures"]
    text = render([samples.cell(status="limited", reason="ran 8 of 16", figures=figures, flags=["unsteady"])])
    assert text.count("ran 8 of 16, unsteady") == 2  # in the matrix and in the table


def test_a_flagged_prefill_says_so_and_explains_the_flag():
    text = render(
        [samples.cell(phase="prefill", figures=samples.seed_cells()[0]["figures"], flags=["inexact_context"])]
    )
    tile = text[text.index('<ul class="tiles">') : text.index("</ul>")]
    assert "Flagged" in tile and "inexact_context" in tile


def test_the_matrix_shows_a_repeat_that_has_figures():
    figures = samples.seed_cells()[10]["figures"]
    cells = [samples.cell(status="failed", reason="a stream stalled"), samples.cell(repeat=2, figures=figures)]
    (row,) = [row for row in rows_of(render(cells)) if row[0] == "8K"]
    assert "323.7" in row[1] and "median of 1 of 2 repeats" in row[1] and "stalled" not in row[1]


def test_cells_of_another_fingerprint_are_named():
    figures = samples.seed_cells()[10]["figures"]
    usual = [samples.cell(figures=figures, concurrency=n) for n in (1, 2, 4)]
    odd = samples.cell(figures=figures, concurrency=8, fingerprint="ffffffffffff")
    text = render([*usual, odd])
    assert "Not one server: decode-8K-x8 (ffffffffffff)" in text[: text.index("</header>")]
    assert "Not one server" not in render(usual)


def test_nothing_measured_and_a_server_that_did_not_start_make_a_page():
    text = render(
        [], healths={"vllm": {"server": "vllm", "engine": "vllm", "error": "no GPU", "facts": None}}, planned=3
    )
    assert "vllm did not start: no GPU" in text and "0 of 3 cells" in text


def test_several_servers_each_have_their_part():
    figures = samples.seed_cells()[10]["figures"]
    cells = [samples.cell(server=name, figures=figures) for name in ("a", "b")]
    text = render(cells, healths={"a": samples.HEALTH, "b": samples.HEALTH})
    assert 'id="server-a">a</h2>' in text and 'id="server-b">b</h2>' in text
    found = [row[0] for row in rows_of(text) if row[0] in ("a", "b")]
    assert found == ["a", "b"] * 2  # a measurement and an origin each


def test_the_title_is_of_all_servers():
    other = samples.HEALTH | {"facts": samples.HEALTH["facts"] | {"model": "other"}}
    assert words.title({"a": samples.HEALTH, "b": samples.HEALTH}).startswith("nvidia/DeepSeek-V4.1-Flash-NVFP4 on RTX")
    assert words.title({"a": samples.HEALTH, "b": other}) == "2 servers: a, b"


TELEMETRY = {
    "power_avg_w": 4000.0, "power_max_w": 4400.0, "energy_j": 120_000.0, "tok_per_j": 0.0809, "gpu_temp_max_c": 71.0,
    "throttle": "power-capped",
}  # fmt: skip


def test_energy_and_price_are_shown_where_they_are_known_and_nowhere_else():
    cells = [samples.seed_cells()[10] | {"telemetry": TELEMETRY}]
    text = render(cells, prices={"vllm": 12.0})
    # 12 an hour ÷ (323.7 tok/s × 3,600 s) × 1,000,000 = 10.3
    (row,) = [row for row in rows_of(text) if row[0] == "Sustained decode"]
    assert row[-6:] == ["4,000 W", "120,000 J", "0.0809", "71 °C", "power-capped", "10.3"]
    assert "Cheapest output: 10.3 per million tokens at 8K × 8" in text
    assert "Most for the energy: 0.0809 tokens per joule at 8K × 8." in text
    assert "1 cell power-capped: 8K × 8." in text and 'value="energy">' in text
    without = render(samples.seed_cells())
    for word in ("Mean power", "Price per million tokens</th>", "per joule at", 'value="energy">'):
        assert word not in without


def test_the_machines_settings_are_rows_and_findings():
    gpu = {"index": 0, "name": "H", "power_limit_w": 400.0, "power_default_w": 600.0, "ecc": False, "pcie_width": 16}
    hardware = samples.HEALTH["hardware"] | {
        "gpus": [gpu, gpu | {"index": 1, "power_limit_w": 600.0}],
        "driver": "570.1",
    }
    text = render([samples.cell()], healths={"vllm": samples.HEALTH | {"hardware": hardware}})
    for said in ("<dt>Power limit</dt><dd>400 W / 600 W</dd>", "<dt>ECC</dt><dd>off</dd>", "<dd>570.1</dd>"):
        assert said in text, said
    assert "GPU 0: power limit 400 W, below the default of 600 W." in text and "GPUs 0, 1: ECC is off." in text


def test_the_chart_of_power_is_of_the_fastest_cell_that_has_any(tmp_path):
    cells = [cell | {"telemetry": TELEMETRY} for cell in samples.seed_cells()[7:10]]
    folder = tmp_path / "vllm"
    folder.mkdir()
    for name, watts in (("decode-8K-x1", 100), ("decode-8K-x2", 200)):  # of 8K × 4, the fastest, there is none
        lines = ["t_s,t_ns,device,power_w,sm_clock_mhz", f"-1.0,1,gpu0,{watts},1500", f"0.5,2,gpu0,{watts + 1},1510"]
        (folder / f"{name}.telemetry.csv").write_text("\n".join([*lines, "0.6,3,host,,"]) + "\n")
    data = charts.data(merge.table(cells), tmp_path)
    assert list(data.series["power_w"]) == [200, 201] and set(data.series["cell"]) == {"vllm decode 8K x2"}
    spec = charts.CHARTS["power"].draw(data).to_dict()
    assert len(spec["vconcat"]) == 2 and "vllm decode 8K x2" in spec["title"]
    assert not charts.CHARTS["power"].has_data(charts.data(merge.table(samples.seed_cells()), tmp_path))
