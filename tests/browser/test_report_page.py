"""The HTML report in a browser, opened from disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.screenshots import visit
from tests.support.made_results import made
from ttrace.report import html
from ttrace.report.payload import payload

pytestmark = pytest.mark.browser

Pages = dict[str, Path]


def text(browser: Any, selector: str) -> str:
    return str(
        browser.execute_script("return document.querySelector(arguments[0]).textContent", selector)
    )


def count(browser: Any, selector: str) -> int:
    return int(
        browser.execute_script("return document.querySelectorAll(arguments[0]).length", selector)
    )


def search(browser: Any, words: str) -> None:
    browser.execute_script(
        "const box = document.querySelector('#search'); box.value = arguments[0];"
        "box.dispatchEvent(new Event('input'))",
        words,
    )
    browser.execute_async_script("setTimeout(arguments[0], 150)")


@pytest.mark.parametrize("name", ["clean", "failing", "hostile", "large"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_opens_from_disk_without_a_word_on_the_console(
    browser: Any, pages: Pages, name: str, dark: bool
) -> None:
    visit(browser, pages[name], dark=dark)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_verdict_and_culprit_come_first(browser: Any, pages: Pages) -> None:
    visit(browser, pages["failing"])
    assert text(browser, "h1") == "NOT EQUIVALENT: layers.2.feed_forward.w2, backward"
    assert "x what is allowed" in text(browser, "#findings")
    assert text(browser, "#tensor-name") == "step0/layers.2.feed_forward.w2:grad_input.0"


def test_click_on_a_cell_opens_its_tensor(browser: Any, pages: Pages) -> None:
    visit(browser, pages["failing"])
    cell = browser.execute_script(
        "return [...document.querySelectorAll('button.cell:not(.sum)')]"
        ".find(c => c.title.includes('layers.2.feed_forward.w3:grad_output'))"
    )
    wanted = cell.get_attribute("title").splitlines()[0]
    cell.click()
    assert text(browser, "#tensor-name") == wanted
    assert count(browser, "#tensor canvas.difference") == 1
    assert "rank" in text(browser, "#tensor")


def test_clean_run_opens_what_is_nearest_to_its_tolerance(browser: Any, pages: Pages) -> None:
    visit(browser, pages["clean"])
    assert text(browser, "#spread-title") == "Every tensor"
    nearest = max(made(4).tensors, key=lambda tensor: tensor.ratio or 0.0)
    assert text(browser, "#tensor-name") == str(nearest.id)
    assert browser.execute_script("return document.querySelector('#heat').scrollTop") == 0


def test_both_comparisons_can_be_looked_at(browser: Any, pages: Pages) -> None:
    """The whole step shows how it spreads; a click on evidence opens it in the isolated run."""
    visit(browser, pages["isolated"])
    before = text(browser, "#matches")
    browser.execute_script("document.querySelector('#findings button').click()")
    assert text(browser, "#matches").endswith(" 1 wrong")
    assert text(browser, "#tensor-name") == text(browser, "#findings button")
    browser.execute_script(
        "const which = document.querySelector('#comparison'); which.value = 0;"
        "which.dispatchEvent(new Event('change'))"
    )
    assert text(browser, "#matches") == before


def test_printed_page_is_light_and_whole(browser: Any, pages: Pages) -> None:
    """In print every row of a small model is there, on paper, whatever the screen's colours are."""
    visit(browser, pages["failing"], dark=True)
    media = {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert count(browser, ".row") == len({t.id.module for t in made(4).tensors}) + 13
    looks = browser.execute_script(
        "const style = getComputedStyle(document.body); return [style.color, style.backgroundColor]"
    )
    assert looks == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]
    browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def test_narrow_screen_scrolls_the_map_only(browser: Any, pages: Pages) -> None:
    size = browser.get_window_size()
    browser.set_window_size(620, 900)
    visit(browser, pages["failing"])
    wide = browser.execute_script(
        "return [document.documentElement, document.querySelector('.map')]"
        ".map((node) => node.scrollWidth > node.clientWidth + 1)"
    )
    browser.set_window_size(size["width"], size["height"])
    assert wide == [False, True]


def test_evidence_opens_its_tensor(browser: Any, pages: Pages) -> None:
    visit(browser, pages["failing"])
    browser.execute_script("document.querySelectorAll('#findings button')[1].click()")
    assert text(browser, "#tensor-name") == text(browser, "#findings li li:nth-child(2) button")


def test_search_and_filter_narrow_the_map(browser: Any, pages: Pages) -> None:
    visit(browser, pages["failing"])
    before = text(browser, "#matches")
    search(browser, "layers.1 w1 output")
    assert text(browser, "#matches") != before
    shown = browser.execute_script(
        "return [...document.querySelectorAll('button.cell:not(.sum)')].map(c => c.title)"
    )
    assert shown
    assert all("layers.1" in title and "w1" in title for title in shown)
    search(browser, "no such tensor")
    assert text(browser, "#matches").startswith("0 of")
    search(browser, "")
    assert text(browser, "#matches") == before


def test_keyboard_reaches_a_tensor(browser: Any, pages: Pages) -> None:
    from selenium.webdriver import ActionChains, Keys

    visit(browser, pages["failing"])
    browser.execute_script("document.querySelector('#heat').focus()")
    before = text(browser, "#tensor-name")
    ActionChains(browser).send_keys(Keys.ARROW_UP, Keys.ENTER).perform()
    assert text(browser, "#tensor-name") != before
    ActionChains(browser).send_keys("/", "wq").perform()
    assert browser.execute_script("return document.querySelector('#search').value") == "wq"


def test_hostile_names_are_text(browser: Any, pages: Pages) -> None:
    visit(browser, pages["hostile"])
    assert "<img src=x onerror=alert(1)>" in text(browser, "h1")
    assert "<img src=x onerror=alert(1)>" in text(browser, "#findings")
    assert "<img src=x onerror=alert(1)>" in text(browser, "#rows")
    assert count(browser, "img") == 0


def test_ten_thousand_tensors_open_fast_and_do_not_freeze(browser: Any, pages: Pages) -> None:
    milliseconds = min(visit(browser, pages["large"]) for _ in range(3))  # others use the machine
    assert int(text(browser, "#matches").split()[2]) > 10_000
    assert milliseconds < 3000
    assert count(browser, ".row") < 100
    slowest = browser.execute_script(
        "const show = document.querySelector('#show'), begin = performance.now();"
        "show.value = 'wrong'; show.dispatchEvent(new Event('change'));"
        "return performance.now() - begin"
    )
    assert slowest < 500  # chosen: a pause that is still taken for an answer


def test_kind_and_verdict_that_the_scripts_never_heard_of_are_drawn(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data brings one of each; the last tensor of the step has both."""
    result = made(4)
    data = payload(result)
    kind = {"name": "amax", "title": "largest value", "group": "update", "is_before_step": False}
    verdict = {"name": "stale", "is_failure": True, "is_undecided": False, "sign": "S"}
    data["exit_code"] = 1
    comparison = data["comparisons"][0]
    comparison["kind"][-1] = len(data["kinds"])
    comparison["verdict"][-1] = len(data["verdicts"])
    data["kinds"].append(kind)
    data["verdicts"].append(verdict | {"meaning": "of an earlier step"})
    monkeypatch.setattr(html, "payload", lambda _: data)
    page = tmp_path / "report.html"
    page.write_text(html.render(result), encoding="utf-8")
    visit(browser, page)
    assert browser.get_log("browser") == []
    assert text(browser, ".columns .group:last-child span:last-child") == "largest value"
    assert text(browser, "#matches").endswith(" 1 wrong")
    assert text(browser, "#legend").endswith("S of an earlier step")
    assert text(browser, ".cell.chosen") == "S"
    assert text(browser, "#tensor-name") == str(result.tensors[-1].id)
    assert text(browser, "#tensor td:nth-child(2)") == "stale"
    charts = "return [...document.querySelectorAll('#charts figure')].map((f) => f.textContent)"
    assert browser.execute_script(charts) == ["Forward", "Backward and update"]
    search(browser, str(result.tensors[-1].id))
    shown = "return [...document.querySelectorAll('#charts figure')].map((f) => !f.hidden)"
    assert browser.execute_script(shown) == [False, True]
