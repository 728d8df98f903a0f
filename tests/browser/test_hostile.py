"""Pages of results whose every text is a stranger's, in a browser: read, and nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.driving import (
    click,
    count,
    print_media,
    screen_media,
    search,
    settle,
    text,
    texts,
)
from tests.browser.screenshots import visit
from tests.support.hostile import PAYLOADS, full, hostile
from ttrace.text import inert

pytestmark = pytest.mark.browser

# Whatever a script of a stranger would do first.
_WATCH = """
window.obeyed = [];
for (const name of ["alert", "confirm", "prompt", "open", "fetch", "eval"])
  window[name] = (...given) => { window.obeyed.push(name + given); };
addEventListener("securitypolicyviolation", (e) => window.obeyed.push(e.violatedDirective));
"""
_KINDS = """
return [...new Set([...document.querySelectorAll('*')].flatMap((node) =>
  ['', ...node.getAttributeNames()].map((name) => `${node.tagName} ${name}`)))]
"""
_ACTING = "script, style, link, img, iframe, form, object, embed, base, meta, a"


@pytest.fixture
def watched(browser: Any) -> Iterator[Any]:
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _WATCH})
    yield browser
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    browser.get("about:blank")  # what was asked for and did not come is on the console by then
    browser.get_log("browser")


def kinds(browser: Any) -> set[str]:
    """Every sort of element, and the attributes that they have, after all was opened."""
    browser.execute_script("document.querySelectorAll('details').forEach((n) => { n.open = true })")
    settle(browser)
    for number in range(min(3, count(browser, ".evidence button"))):
        browser.execute_script(
            "document.querySelectorAll('.evidence button')[arguments[0]].click()", number
        )
    found = set(browser.execute_script(_KINDS))
    print_media(browser)
    found |= set(browser.execute_script(_KINDS))
    screen_media(browser)
    search(browser, "norm")
    return found | set(browser.execute_script(_KINDS))


@pytest.fixture
def friendly(watched: Any, tmp_path: Path) -> tuple[set[str], int]:
    full().write_html(tmp_path / "friendly.html")
    visit(watched, tmp_path / "friendly.html")
    return kinds(watched), count(watched, _ACTING)


@pytest.mark.parametrize("name", PAYLOADS)
def test_nothing_of_it_is_obeyed(
    name: str, watched: Any, friendly: tuple[set[str], int], tmp_path: Path
) -> None:
    result = hostile(PAYLOADS[name])
    result.write_html(tmp_path / "page.html")
    visit(watched, tmp_path / "page.html")
    assert kinds(watched) <= friendly[0]
    assert count(watched, _ACTING) == friendly[1]
    assert watched.execute_script("return window.obeyed") == []
    assert watched.get_log("browser") == []
    assert watched.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert watched.execute_script("return document.title") == " ".join(str(result).split())
    assert inert(PAYLOADS[name]) in text(watched, "#captured")
    shown = "".join(texts(watched, "body"))
    assert all(inert(line) == line for line in shown.split("\n"))


def test_an_address_names_a_tensor_of_any_name(watched: Any, tmp_path: Path) -> None:
    result = hostile("".join(PAYLOADS.values()))
    result.write_html(tmp_path / "page.html")
    visit(watched, tmp_path / "page.html")
    click(watched, ".evidence button")
    name = text(watched, "#tensor-name")
    assert name in {str(tensor.id) for tensor in result.tensors}
    watched.get("about:blank")
    address = f"{(tmp_path / 'page.html').as_uri()}#tensor={quote(name, safe='')}"
    watched.get(address)
    settle(watched)
    assert text(watched, "#tensor-name") == name


def test_the_companion_sees_what_is_obeyed(watched: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<html data-ready='1'><title>x</title>{PAYLOADS['markup']}", encoding="utf-8")
    visit(watched, page)
    settle(watched)
    assert "alert1" in watched.execute_script("return window.obeyed")
