"""A real browser, and pages as files on disk."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from speedmatrix import page
from tests.unit import samples

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser that SPEEDMATRIX_BROWSER names, which must work then, or the first that is installed.

    Not for the session: as long as it is open an event loop runs in this thread, where other tests start their own.
    """
    program = os.environ.get("SPEEDMATRIX_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium is installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield running
        running.close()


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> dict[str, Path]:
    """The published page's figures, and the same with a cell of every status."""
    directory = tmp_path_factory.mktemp("pages")
    pages = {"seed": samples.seed_cells(), "odd": samples.odd_cells()}
    for name, cells in pages.items():
        (directory / f"{name}.html").write_text(page.render(samples.page_input(cells)), encoding="utf-8")
    return {name: directory / f"{name}.html" for name in pages}


@pytest.fixture
def open_page(browser: Browser, files: dict[str, Path]) -> Iterator[Callable[..., Page]]:
    """Opens a page as a reader would; what it says to the console and asks for is kept in `page.heard`."""
    contexts = []

    def opened(name: str = "seed", **settings) -> Page:
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | settings))
        shown = contexts[-1].new_page()
        shown.heard = []
        shown.on("console", lambda message: shown.heard.append(f"{message.type}: {message.text}"))
        shown.on("pageerror", lambda error: shown.heard.append(f"error: {error}"))
        shown.on("request", lambda request: shown.heard.append(f"request: {request.url[:80]}"))
        shown.goto(files[name].as_uri())
        if settings.get("java_script_enabled", True):
            shown.wait_for_function("document.querySelectorAll('.chart .vega-embed svg').length === 4")
        return shown

    yield opened
    for context in contexts:
        context.close()
