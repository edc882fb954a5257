"""The table and its CSV, and the charts drawn from it."""

import csv
import io
import json
import re

import pytest

from speedmatrix import charts, cost, merge, store
from tests.unit import samples


def written(cells: list[dict], tmp_path) -> list[dict[str, str]]:
    merge.write_csv(merge.table(cells), tmp_path / "m.csv")
    return list(csv.DictReader(io.StringIO((tmp_path / "m.csv").read_text())))


def test_the_published_pages_rows(tmp_path):
    rows = written(samples.seed_cells(), tmp_path)
    assert len(rows) == 55
    last = rows[-7]  # 251K × 2
    assert (last["context_tokens"], last["concurrency"], last["total_tok_s"]) == (str(251 * 1024), "2", "199.8")
    assert (rows[-1]["status"], rows[-1]["total_tok_s"], rows[-1]["completed"]) == ("over_capacity", "", "")


def test_what_is_written_is_read_back(tmp_path):
    table = merge.table(samples.seed_cells())
    merge.write_csv(table, tmp_path / "m.csv")
    again = merge.read_csv(tmp_path / "m.csv")
    assert list(again.columns) == merge.COLUMNS
    assert again["total_tok_s"].equals(table["total_tok_s"]) and again["concurrency"].equals(table["concurrency"])


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "<script>alert(1)</script>", 'a,"b"', "two\nlines"])
def test_hostile_text_is_one_harmless_field(text, tmp_path):
    (row,) = written([samples.cell(status="failed", reason=text)], tmp_path)
    plain = " ".join(text.split("\n"))
    assert row["reason"] == (f"'{text}" if text[0] in "=+-@" else plain)
    assert row["status"] == "failed"


def test_names_that_look_like_numbers_are_read_back_as_they_are(tmp_path):
    cells = [samples.cell(server=name, fingerprint="00000000e123") for name in ("1.10", "1e5", "null", "nan")]
    merge.write_csv(merge.table(cells), tmp_path / "m.csv")
    again = merge.read_csv(tmp_path / "m.csv")
    assert list(again["server"]) == ["1.10", "1e5", "null", "nan"]
    assert set(again["fingerprint"]) == {"00000000e123"}
    assert again["reason"].isna().all()


def test_absent_is_empty_and_zero_is_zero(tmp_path):
    figures = {"total_tok_s": 5.0, "completed": 0, "cached_share": 0.0, "itl_ms": None}
    (row,) = written([samples.cell(figures=figures)], tmp_path)
    assert (row["completed"], float(row["cached_share"]), row["itl_ms"], row["server_tok_s"]) == ("0", 0, "", "")


def test_telemetry_and_price_are_columns(tmp_path):
    told = {
        "energy_j": 4000.0,
        "tok_per_j": 0.3,
        "power_avg_w": 400.0,
        "gpu_temp_max_c": 71,
        "throttle": "power-capped",
    }
    cells = [
        samples.cell(figures={"total_tok_s": 500.0}, telemetry=told),
        samples.cell(figures={"total_tok_s": 9000.0}, phase="prefill", telemetry=told | dict.fromkeys(told)),
        samples.cell(figures={"total_tok_s": 250.0}, concurrency=2),  # of an older version
        samples.cell(status="failed", reason="a stream stalled", concurrency=4, telemetry=None),
    ]
    merge.write_csv(merge.table(cells, {"vllm": 18.0}), tmp_path / "m.csv")
    rows = list(csv.DictReader((tmp_path / "m.csv").open()))
    columns = ("energy_j", "tok_per_j", "power_avg_w", "gpu_temp_max_c", "throttle", "price_per_mtok")
    shown = [[row[column] for column in columns] for row in rows]
    # 18 an hour for 500 × 3,600 tokens are 10 for a million; prefill generates none.
    assert shown[0] == ["4000", "0.3", "400", "71", "power-capped", "10"]
    assert shown[1:] == [[""] * 6, [""] * 5 + ["20"], [""] * 6]
    assert {row["price_per_mtok"] for row in written(cells, tmp_path)} == {""}
    assert cost.cheapest({"vllm": 18.0}, cells) == cells[0] and cost.cheapest({}, cells) is None


def test_flags_are_joined_by_semicolons(tmp_path):
    (row,) = written([samples.cell(figures={}, flags=["unsteady", "short_window"])], tmp_path)
    assert row["flags"] == "unsteady;short_window"


def test_a_broken_cell_is_named(tmp_path):
    for text, said in (("{", "not valid JSON"), ("{}", "is a required property"), ('{"schema": 2}', "no valid cell")):
        (tmp_path / "c.json").write_text(text)
        with pytest.raises(store.StoreError, match=said) as caught:
            merge.read_cells([tmp_path / "c.json"])
        assert "c.json" in str(caught.value) and "delete it and run again" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_cell_at_another_cells_place_is_refused(tmp_path):
    (tmp_path / "vllm").mkdir()
    right = tmp_path / "vllm/decode-8K-x1.json"
    store.write_json(right, samples.cell())
    assert merge.read_cells([right]) == [samples.cell()]
    for place in (
        "vllm/decode-8K-x2",
        "vllm/decode-4K-x1",
        "vllm/decode-8K-x1.r2",
        "vllm/prefill-8K",
        "b/decode-8K-x1",
    ):
        wrong = tmp_path / f"{place}.json"
        store.write_json(wrong, samples.cell())
        with pytest.raises(store.StoreError) as caught:
            merge.read_cells([wrong])
        held = "results/cells/vllm/decode-8K-x1.json"
        assert str(caught.value) == f"{wrong} holds another cell ({held}): delete it and run again"


def test_samples_are_cells_by_the_schema():
    for cell in samples.seed_cells():
        assert list(store.schema("cell").iter_errors(cell)) == []


@pytest.mark.parametrize("name", charts.CHARTS)
@pytest.mark.parametrize(
    "rows", [[], [0], [7], [54], list(range(55))], ids=["none", "prefill", "decode", "over", "all"]
)
def test_every_chart_is_drawn_whatever_was_measured(name, rows, tmp_path):
    cells = samples.seed_cells()
    table = merge.table([cells[i] for i in rows])
    charts.write(charts.CHARTS[name].draw(charts.Data(table, charts.NO_SERIES)), tmp_path, name)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    charts.write(charts.CHARTS[name].draw(charts.Data(table, charts.NO_SERIES)), tmp_path, name)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
    assert set(first) == {f"{name}.{kind}" for kind in ("json", "svg", "png")}
    assert b"<text" in first[f"{name}.svg"]


FIGURES = {"total_tok_s": 100.0, "request_tok_s": 50.0, "ttft_ms": 20.0, "itl_ms": 20.0}


@pytest.mark.parametrize("name", charts.CHARTS)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("value", [0.0, None])
def test_a_figure_of_zero_or_none_is_no_obstacle(name, phase, value):
    cells = [
        samples.cell(phase=phase, figures=dict.fromkeys(FIGURES, value)),
        samples.cell(phase=phase, context_tokens=512, figures=FIGURES),
    ]
    for rows in (cells, cells[:1]):
        assert "<text" in charts.svg(charts.CHARTS[name].draw(charts.Data(merge.table(rows), charts.NO_SERIES)))


def test_repeats_are_one_place_and_a_failed_one_does_not_hide_the_others():
    cells = [
        samples.cell(figures=FIGURES),
        samples.cell(repeat=2, figures=FIGURES | {"total_tok_s": 300.0}),
        samples.cell(repeat=3, status="failed", reason="a stream stalled"),
        samples.cell(concurrency=2, status="failed", reason="a stream stalled"),
    ]
    (rows,) = (
        charts.CHARTS["matrix"].draw(charts.Data(merge.table(cells), charts.NO_SERIES)).to_dict()["datasets"].values()
    )
    shown = [(row["concurrency"], row["total_tok_s"], row["word"]) for row in rows]
    assert shown == [(1, 200.0, ""), (2, None, "failed")]  # (100 + 300) / 2


def luminance(red: int, green: int, blue: int) -> float:
    """Relative luminance as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red / 255, green / 255, blue / 255)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_numbers_in_the_heat_map_can_be_read_on_every_colour():
    # 64 lanes whose speeds run evenly over the palette: 2 to 2 * 1.1^63.
    cells = [samples.cell(concurrency=n + 1, figures=FIGURES | {"total_tok_s": 2 * 1.1**n}) for n in range(64)]
    drawn = charts.svg(charts.CHARTS["matrix"].draw(charts.Data(merge.table(cells), charts.NO_SERIES)))
    grounds = re.findall(r'<path aria-label="[^"]*"[^>]*? fill="rgb\((\d+), (\d+), (\d+)\)"', drawn)
    inks = re.findall(r'<text aria-label="[^"]*"[^>]*? fill="(white|black)"', drawn)
    assert len(grounds) == len(inks) == 64
    for ground, ink in zip(grounds, inks, strict=True):
        low, high = sorted([luminance(*map(int, ground)), {"white": 1.0, "black": 0.0}[ink]])
        assert (high + 0.05) / (low + 0.05) >= 4.5, (ground, ink)


@pytest.mark.parametrize(("panels", "columns"), [(1, 1), (4, 4), (5, 3), (6, 3), (7, 4), (8, 4), (9, 3), (10, 4)])
def test_panels_fill_their_rows_evenly(panels, columns):
    cells = [samples.cell(context_tokens=1024 * n, figures=FIGURES) for n in range(1, panels + 1)]
    spec = charts.CHARTS["total-tok-s"].draw(charts.Data(merge.table(cells), charts.NO_SERIES)).to_dict()
    assert spec["columns"] == columns


def test_the_chart_of_total_speed_holds_the_tables_values():
    spec = charts.CHARTS["total-tok-s"].draw(charts.Data(merge.table(samples.seed_cells()), charts.NO_SERIES)).to_dict()
    (values,) = spec["datasets"].values()
    own = {(row["context"], row["concurrency"]): row["total_tok_s"] for row in values if row["own"]}
    assert own[("8K", 64)] == 597.2 and own[("251K", 2)] == 199.8
    assert len(own) == 27 and all(row["panel"] == row["context"] for row in values if row["own"])
    assert len(values) == 6 * 27  # all lines are behind each panel's own
    assert spec["spec"]["layer"][0]["encoding"]["x"]["axis"]["values"] == [1, 2, 4, 8, 16, 32, 64]


def test_several_servers_have_a_panel_each():
    cells = [cell | {"server": name} for name in ("a", "b") for cell in samples.seed_cells()]
    given = charts.Data(merge.table(cells), charts.NO_SERIES)
    for kind in filter(lambda kind: kind.has_data(given), charts.CHARTS.values()):
        assert "facet" in json.loads(kind.draw(given).to_json())


def test_an_atomic_write_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    store.write_json(path, {"a": 1})
    monkeypatch.setattr(store.os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        store.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [child.name for child in tmp_path.iterdir()] == ["a.json"]


def sized(tokens, lanes, **more):
    return samples.cell(kv_capacity_tokens=tokens, concurrency=lanes, figures={"total_tok_s": 1.0}, **more)


def test_a_kv_cache_of_another_size_is_named_from_two_percent_on():
    same = [sized(900_000, 1), sized(900_000, 2), sized(917_999, 4), sized(882_001, 8)]
    assert merge.odd_fingerprints(same) == {}
    odd = merge.odd_fingerprints([*same, sized(880_000, 16)])
    assert odd == {"vllm": {"0123456789ab, KV cache of 880,000 tokens": ["decode-8K-x16"]}}
    assert merge.odd_fingerprints([sized(None, 1), sized(900_000, 2)]) == {}


def test_a_strict_page_is_refused_where_a_servers_cells_measured_different_things():
    same = [samples.cell(concurrency=n, figures={"total_tok_s": 1.0}) for n in (1, 2, 4)]
    merge.refuse_mixed(same)
    merge.refuse_mixed([*same, samples.cell(server="other", fingerprint="f" * 12, figures={"total_tok_s": 1.0})])
    merge.refuse_mixed([*same, samples.cell(concurrency=8, fingerprint="f" * 12, status="failed")])  # has no figure
    odd = samples.cell(concurrency=8, fingerprint="f" * 12, figures={"total_tok_s": 1.0})
    with pytest.raises(merge.MixedError) as caught:
        merge.refuse_mixed([*same, odd])
    assert str(caught.value) == (
        "report.strict: decode-8K-x8 of vllm measured something else (ffffffffffff) than its other cells:"
        " delete results/servers/vllm and run again, or say strict: false"
    )
