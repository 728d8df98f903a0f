"""axe-core finds nothing to complain about; it is installed by `make browser-deps`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.driving import resize
from tests.browser.screenshots import ROOT, visit

pytestmark = pytest.mark.browser

AXE = ROOT / "build/axe/node_modules/axe-core/axe.min.js"
RUN = """
const done = arguments[arguments.length - 1];
const told = ({id, help, nodes}) => `${id}: ${help}: ${nodes.length} times, as ${nodes[0].html}`;
axe.run(document).then(({violations}) => done(violations.map(told)));
"""


def violations(browser: Any) -> list[str]:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: `make browser-deps`")
    browser.execute_script(AXE.read_text(encoding="utf-8"))
    browser.set_script_timeout(60)
    return list(browser.execute_async_script(RUN))


@pytest.mark.parametrize("name", ["clean", "failing", "isolated", "hostile", "large"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_no_violation(
    browser: Any, pages: dict[str, Path], name: str, dark: bool, width: int
) -> None:
    resize(browser, width)
    visit(browser, pages[name], dark=dark)
    assert violations(browser) == []
    browser.execute_script(
        "document.querySelectorAll('details').forEach((d) => { d.open = true; })"
    )
    assert violations(browser) == []


def test_check_finds_a_violation(browser: Any, pages: dict[str, Path]) -> None:
    visit(browser, pages["clean"])
    browser.execute_script("document.querySelector('#search').removeAttribute('aria-label')")
    browser.execute_script("document.querySelector('#search').removeAttribute('placeholder')")
    assert [found.partition(":")[0] for found in violations(browser)] == ["label"]
