"""A headless chromium; the tests are skipped where it or selenium is not installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.made_pages import complete, isolated, of_two_steps, write
from tests.support.hostile import PAYLOADS, hostile
from tests.support.made_results import made

NAME = "".join(PAYLOADS[kind] for kind in ("markup", "terminal", "unseen", "surrogates", "xml"))


@pytest.fixture(scope="session")
def shared_browser() -> Iterator[object]:
    pytest.importorskip("selenium")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed: `make browser-deps`")
    from tests.browser.screenshots import open_browser

    opened = open_browser()
    yield opened
    opened.quit()


@pytest.fixture
def browser(shared_browser: object) -> Iterator[object]:
    """Of the usual size before every test, whatever another test made of it."""
    from tests.browser.driving import usual_size

    usual_size(shared_browser)
    yield shared_browser
    usual_size(shared_browser)


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    results = {
        "clean": made(4),
        "failing": made(4, wrong_layer=2),
        "isolated": isolated(),
        "steps": of_two_steps(),
        "hostile": hostile(NAME),
        "large": made(140, wrong_layer=100),
    }
    return {
        name: write(folder / f"{name}.html", result, complete(result))
        for name, result in results.items()
    }
