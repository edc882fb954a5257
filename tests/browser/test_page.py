"""The page in a real browser, from file://."""

import json
import re

import pytest
from axe_playwright_python.sync_playwright import Axe

from speedmatrix import merge
from tests.unit import samples

A4_PX = 703  # 186 mm, what the margins leave of the width, at 96 px an inch
LANDSCAPE_PX = 1032


def visible(page, place: str) -> str:
    """What a reader sees in a cell of the decode matrix."""
    return " ".join(page.locator(f"[id='vllm-decode-{place}']").inner_text().split())


def show(page, measure: str) -> None:
    page.get_by_role("radio", name=measure, exact=True).check()


def test_it_says_nothing_to_the_console_and_asks_for_nothing(open_page, files):
    page = open_page("odd")
    assert page.heard == [f"request: {files['odd'].as_uri()[:80]}"]
    assert len(files["seed"].read_bytes()) < 3_000_000


def test_the_switch_shows_another_measure_with_its_scale(open_page):
    page = open_page()
    assert visible(page, "8K-x64") == "597.2 26,641 ms TTFT"
    legend = page.locator(".legend:visible")
    assert legend.inner_text().split("\n")[0] == "113.3"
    show(page, "TTFT")
    assert visible(page, "8K-x64") == "26,641 ms 597.2 tok/s"
    page.keyboard.press("ArrowRight")
    assert visible(page, "8K-x64") == "166.50 ms 26,641 ms TTFT" and legend.count() == 1
    show(page, "Per request tok/s")
    assert visible(page, "8K-x64") == "6.0 26,641 ms TTFT"


def column(page, number: int) -> list[str]:
    return page.locator(f"#measured tbody tr:visible td:nth-child({number})").all_inner_texts()


def test_the_table_sorts_by_number_both_ways_with_absent_figures_last(open_page):
    page = open_page()
    head = page.locator("#measured th", has_text="Per request tok/s")
    head.get_by_role("button").click()
    shown = column(page, 6)
    figures = [float(text.replace(",", "")) for text in shown if text != "—"]
    assert len(figures) == 27 and figures == sorted(figures) and shown[27:] == ["—"] * 7
    assert head.get_attribute("aria-sort") == "ascending"
    head.get_by_role("button").press("Enter")
    assert column(page, 6)[0] == "115.4" and column(page, 6)[27:] == ["—"] * 7
    assert head.get_attribute("aria-sort") == "descending"


def test_the_filter_leaves_rows_that_hold_every_word(open_page):
    page = open_page()
    page.get_by_label("Filter").fill("decode 8k")
    assert column(page, 2) == ["8K"] * 7 and page.locator(".shown").inner_text() == "7 of 34 rows"
    page.get_by_label("Filter").fill("decode x16 valid")
    assert column(page, 3) == ["16"] * 3  # and not 16K × 1
    page.get_by_label("Filter").fill("nonsense")
    assert column(page, 2) == [] and "No row has all of these words" in page.locator(".shown").inner_text()
    page.get_by_label("Filter").fill("")
    assert page.locator(".shown").inner_text() == "34 rows"


def test_cells_that_were_not_run_are_under_a_count(open_page):
    page = open_page()
    details = page.locator("details", has_text="21 cells not run")
    assert details.locator("tbody tr:visible").count() == 0
    details.locator("summary").click()
    assert details.locator("tbody tr:visible").count() == 21


def test_a_mark_tells_its_figures_and_a_legend_brings_a_context_out(open_page):
    page = open_page()
    page.locator("[data-chart='ttft'] .mark-symbol path[aria-roledescription='point']").first.hover()
    tip = page.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    for said in ("Context", "Requests at once", "TTFT (ms)", "Total tok/s"):
        assert said in tip.inner_text()
    faded = "[data-chart='ttft'] .mark-symbol path[opacity='0.12']"
    assert page.locator(faded).count() == 0
    page.locator("[data-chart='ttft'] .role-legend-label text").first.click()
    page.wait_for_selector(faded)
    assert page.locator(faded).count() == 27 - 7  # all but those of 8K


def test_copy_buttons_and_download_give_what_they_say(open_page):
    page = open_page(permissions=["clipboard-read", "clipboard-write"], accept_downloads=True)
    button = page.locator("#reproduce .code button").first
    button.click()
    assert page.evaluate("navigator.clipboard.readText()") == samples.HEALTH["launch_command"]
    assert button.inner_text() == "Copied"
    page.get_by_role("button", name="Copy as Markdown").click()
    assert "| 8K | 115.3 (816 ms) | 207.6" in page.evaluate("navigator.clipboard.readText()")
    with page.expect_download() as started:
        page.get_by_role("button", name="Download CSV").click()
    assert started.value.suggested_filename == "measurements.csv"
    assert started.value.path().read_text() == merge.csv_text(merge.table(samples.seed_cells()))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["seed", "odd"])
def test_axe_finds_nothing(open_page, name, scheme):
    page = open_page(name, color_scheme=scheme)
    page.locator("details summary").evaluate_all("all => all.forEach(one => one.click())")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def luminance(rgb: list[int]) -> float:
    """Relative luminance by WCAG 2."""
    linear = [v / 12.92 if (v := part / 255) <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for part in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: list[int], other: list[int]) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


PAINTED = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  return [...document.querySelectorAll(".matrix td.measured")].flatMap((cell) =>
    [...cell.querySelectorAll("span")].filter((text) => text.checkVisibility()).map((text) =>
      [rgb(getComputedStyle(cell).backgroundColor), rgb(getComputedStyle(text).color)]));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_ink_stands_out_from_every_shade_of_the_matrix(open_page, scheme):
    page = open_page("odd", color_scheme=scheme)
    for measure in ("Total tok/s", "Per request tok/s", "TTFT", "Time between tokens"):
        show(page, measure)
        pairs = page.evaluate(PAINTED)
        shades = {tuple(shade) for shade, _ in pairs}
        assert len(shades) > 5 and len(pairs) > 50
        assert min(contrast(shade, ink) for shade, ink in pairs) >= 4.5


def test_marks_of_charts_stand_out_on_both_grounds(open_page):
    from speedmatrix import charts

    for colour in [charts.ACCENT, *charts.CONTEXTS]:
        rgb = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
        assert contrast(rgb, [255, 255, 255]) >= 3 and contrast(rgb, [0x1B, 0x1F, 0x24]) >= 3, colour


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_follow_the_readers_setting(open_page, scheme):
    page = open_page(color_scheme=scheme)
    panel, text, ground = page.evaluate("""() => {
      const figure = document.querySelector("figure"), style = (one) => getComputedStyle(one);
      return [style(figure).backgroundColor, style(figure.querySelector(".role-axis-label text")).fill,
        style(figure.querySelector("svg")).backgroundColor];
    }""")
    rgb = [[int(part) for part in re.findall(r"\d+", colour)] for colour in (panel, text)]
    assert ground == "rgba(0, 0, 0, 0)" and contrast(*rgb) >= 4.5


def test_on_paper_all_is_open_and_nothing_is_cut(open_page):
    page = open_page("odd")
    closed = "document.querySelectorAll('details:not([open])').length"
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.shut = {closed} }})")
    assert page.pdf(prefer_css_page_size=True)[:4] == b"%PDF"
    assert page.evaluate("window.shut") == 0
    assert page.locator("details[open]").count() == 0  # closed again
    page.emulate_media(media="print")
    page.set_viewport_size({"width": A4_PX, "height": 1000})
    assert page.evaluate("document.querySelector('.matrix').offsetWidth") <= A4_PX
    assert not page.locator("nav").is_visible() and not page.locator(".tools").is_visible()
    page.set_viewport_size({"width": LANDSCAPE_PX, "height": 700})
    assert page.evaluate("document.querySelector('#measured').offsetWidth") <= LANDSCAPE_PX


def test_a_phone_scrolls_tables_and_not_the_page(open_page):
    page = open_page("odd", viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_the_keyboard_reaches_everything_and_motion_is_reduced_on_request(open_page):
    page = open_page(reduced_motion="reduce")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the findings"
    page.keyboard.press("Enter")
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("(document.activeElement.name || document.activeElement.textContent).slice(0, 20)"))
    assert {"measure-vllm", "Copy as Markdown"} <= reached
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    assert page.evaluate("document.documentElement.lang") == "en"


def test_without_a_script_everything_is_there_to_read(open_page):
    page = open_page(java_script_enabled=False)
    assert visible(page, "8K-x64") == "597.2 26,641 ms TTFT"
    show(page, "TTFT")
    assert visible(page, "8K-x64") == "26,641 ms 597.2 tok/s"
    assert page.locator(".chart > svg").count() == 4


def test_what_a_server_says_runs_nowhere(browser, tmp_path):
    """A model name and a reason that would end every element that they could stand in."""
    from speedmatrix import page as pages

    evil = (
        "</script></title></style><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
    )
    facts = samples.HEALTH["facts"] | {"model": evil, "version": evil, "quantization": evil}
    health = samples.HEALTH | {"facts": facts, "launch_command": evil}
    cells = [samples.seed_cells()[7], samples.cell(status="failed", reason=evil)]
    given = samples.page_input(cells, healths={"vllm": health}, config=evil, author=evil)
    (tmp_path / "evil.html").write_text(pages.render(given), encoding="utf-8")
    shown = browser.new_page()
    heard: list[str] = []
    shown.on("pageerror", lambda error: heard.append(str(error)))
    shown.goto((tmp_path / "evil.html").as_uri())
    shown.wait_for_function("document.querySelectorAll('.chart .vega-embed svg').length > 0")
    assert shown.title().startswith("</script></title>") and heard == []
    assert json.loads(shown.locator("#measurements-csv").evaluate("one => one.textContent")) == given.csv
    shown.close()
