"""A headless chromium; the tests are skipped where it or selenium is not installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.made_results import made
from ttrace.core.results import CheckResult, Verdict
from ttrace.report.html import render


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    pytest.importorskip("selenium")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed: `make browser-deps`")
    from tests.browser.screenshots import open_browser

    opened = open_browser()
    yield opened
    opened.quit()


def isolated() -> CheckResult:
    """With an isolated run, in which the culprit alone is wrong."""
    whole = made(4, wrong_layer=2)
    (culprit,) = whole.culprits
    alone = replace(culprit, evidence=culprit.evidence[:1])
    tensors = (
        t if t.id in alone.evidence else replace(t, verdict=Verdict.PASS, ratio=0.1)
        for t in whole.tensors
    )
    run = replace(whole, tensors=tuple(tensors), culprits=(alone,))
    return replace(whole, culprits=(alone,), isolation=run)


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")

    def page(name: str, result: CheckResult) -> Path:
        file = folder / f"{name}.html"
        file.write_text(render(result), encoding="utf-8")
        return file

    from tests.unit.report.test_forms import hostile

    return {
        "clean": page("clean", made(4)),
        "failing": page("failing", made(4, wrong_layer=2)),
        "isolated": page("isolated", isolated()),
        "hostile": page("hostile", hostile()),
        "large": page("large", made(140, wrong_layer=100)),
    }
