"""One truth per tensor: what the text names is what the page opens, with the same numbers."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.browser.driving import box, click, count, press, resize, search, text, texts
from tests.browser.made_pages import Payload, changed, place_of
from tests.browser.screenshots import visit
from ttrace.core.ids import Kind
from ttrace.report.numbers import times

pytestmark = pytest.mark.browser

Pages = dict[str, Path]
CULPRIT = "step0/layers.2.feed_forward.w2:grad_input.0"
CHOSEN_TAB = "[role=tab][aria-selected=true]"


def address(browser: Any) -> str:
    return str(browser.execute_script("return decodeURIComponent(location.hash)"))


def at(browser: Any, page: Path, fragment: str) -> None:
    browser.get("about:blank")  # the same page with another fragment is not loaded again
    browser.get(f"{page.as_uri()}{fragment}")
    ready = "return document.documentElement.dataset.ready"
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 30).until(lambda b: b.execute_script(ready))


def rows(browser: Any) -> int:
    return int(browser.execute_script("return document.querySelector('#heat').ariaRowCount"))


def test_page_opens_what_the_card_names_where_it_was_judged(browser: Any, pages: Pages) -> None:
    visit(browser, pages["isolated"])
    assert text(browser, CHOSEN_TAB).startswith("Isolated run")
    assert text(browser, "#tensor-name") == text(browser, ".evidence button") == CULPRIT
    assert "430,000x its tolerance" in text(browser, "#tensor .ruled")
    assert text(browser, "#matches").endswith(" 1 wrong")


@pytest.mark.parametrize(
    "ratio",
    [1.07, 9.96, 12.34, 271.4, 2718.0, 193_400.0, 999_600.0, 1.43e7, 3.2e10, 4e13, 3e24, math.inf],
)
def test_panel_says_a_ratio_as_every_report_does(
    browser: Any, tmp_path: Path, ratio: float
) -> None:
    def far(data: Payload) -> None:
        named = place_of(data, Kind.GRAD_INPUT, "layers.2.feed_forward.w2")
        data["comparisons"][0]["ratio"][named] = ratio if ratio < math.inf else "inf"

    visit(browser, changed(tmp_path, far))
    assert text(browser, "#tensor .ruled") == f"mismatch, {times(ratio)} its tolerance"


def test_worst_tensor_is_not_opened_before_the_named_one(browser: Any, tmp_path: Path) -> None:
    """Another tensor of the same cell and many elsewhere are worse."""

    def worse_elsewhere(data: Payload) -> None:
        comparison = data["comparisons"][0]
        comparison["ratio"] = [r if r < 1 else 1e9 for r in comparison["ratio"]]
        named = place_of(data, Kind.GRAD_INPUT, "layers.2.feed_forward.w2")
        comparison["ratio"][named] = 7.0

    visit(browser, changed(tmp_path, worse_elsewhere))
    assert text(browser, "#tensor-name") == CULPRIT
    assert text(browser, ".cell.chosen") == "7.0"


def test_culprit_is_flagged_in_both_maps(browser: Any, pages: Pages) -> None:
    visit(browser, pages["isolated"])
    named = "#rows .cell.named:not(.sum)"
    for tab in ("Isolated run", "Whole step"):
        browser.execute_script(
            "[...document.querySelectorAll('[role=tab]')]"
            ".find((node) => node.textContent.startsWith(arguments[0])).click()",
            tab,
        )
        assert count(browser, named) == 1
        label = browser.execute_script(f"return document.querySelector('{named}').ariaLabel")
        assert label.startswith(CULPRIT)
        assert "named in the answer" in label


def test_tabs_say_how_much_is_wrong_and_keep_the_tensor(browser: Any, pages: Pages) -> None:
    visit(browser, pages["isolated"])
    assert browser.execute_script("return document.querySelector('#tabs').role") == "tablist"
    isolated, whole = texts(browser, "[role=tab]")
    assert isolated.endswith(" 1 wrong")
    assert not whole.endswith(" 1 wrong")
    click(browser, "[role=tab]:nth-child(2)")
    assert text(browser, CHOSEN_TAB) == whole
    assert text(browser, "#tensor-name") == CULPRIT
    assert "in the whole step" in text(browser, "#tensor")
    assert text(browser, "#matches").split(", ")[-1] == f"{whole.split()[-2]} wrong"
    panel = "return document.querySelector('#compared').getAttribute('aria-labelledby')"
    assert browser.execute_script(panel) == "tab-0"


def test_tabs_go_by_arrow_keys(browser: Any, pages: Pages) -> None:
    from selenium.webdriver import Keys

    visit(browser, pages["isolated"])
    browser.execute_script("document.querySelector(arguments[0]).focus()", CHOSEN_TAB)
    press(browser, Keys.ARROW_RIGHT)
    assert text(browser, CHOSEN_TAB).startswith("Whole step")
    assert browser.execute_script("return document.activeElement.ariaSelected") == "true"
    press(browser, Keys.HOME)
    assert text(browser, CHOSEN_TAB).startswith("Isolated run")


def test_page_of_one_comparison_has_no_tabs(browser: Any, pages: Pages) -> None:
    visit(browser, pages["failing"])
    assert count(browser, "[role=tab], [role=tabpanel]") == 0


def test_panel_leads_to_the_same_tensor_in_the_other_run(browser: Any, pages: Pages) -> None:
    visit(browser, pages["isolated"])
    click(browser, "#tensor button.link")
    assert text(browser, CHOSEN_TAB).startswith("Whole step")
    assert text(browser, "#tensor-name") == CULPRIT
    assert browser.execute_script("return document.activeElement.id") == "tensor"


def test_step_of_the_culprit_is_chosen(browser: Any, pages: Pages) -> None:
    visit(browser, pages["steps"])
    value = "return document.querySelector('#step').value"
    assert browser.execute_script(value) == "1"
    assert text(browser, "#tensor-name").startswith("step1/")
    browser.execute_script(
        "const step = document.querySelector('#step'); step.value = '0';"
        "step.dispatchEvent(new Event('change'))"
    )
    assert text(browser, "#matches").endswith(" 0 wrong")


def test_address_opens_a_tensor_on_load_and_when_it_changes(browser: Any, pages: Pages) -> None:
    wanted = "step0/layers.1.attention.wq:output.0"
    at(browser, pages["isolated"], f"#tensor={wanted}&in=whole%20step")
    assert text(browser, "#tensor-name") == wanted
    assert text(browser, CHOSEN_TAB).startswith("Whole step")
    browser.execute_script("location.hash = arguments[0]", f"#tensor={CULPRIT}")
    browser.execute_async_script("setTimeout(arguments[0], 100)")
    assert text(browser, "#tensor-name") == CULPRIT
    assert text(browser, CHOSEN_TAB).startswith("Isolated run")


def test_address_follows_what_is_chosen_and_leads_back_to_it(browser: Any, pages: Pages) -> None:
    visit(browser, pages["isolated"])
    assert address(browser) == ""
    click(browser, "[role=tab]:nth-child(2)")
    click(browser, ".cell[aria-label*='w2:grad.']:not(.sum)")
    chosen = text(browser, "#tensor-name")
    assert address(browser) == f"#tensor={chosen}&in=whole step"
    at(browser, pages["isolated"], browser.execute_script("return location.hash"))
    assert text(browser, "#tensor-name") == chosen
    assert text(browser, CHOSEN_TAB).startswith("Whole step")


def test_address_of_no_tensor_says_so(browser: Any, pages: Pages) -> None:
    at(browser, pages["failing"], "#tensor=step9/nowhere:output.0")
    assert (
        text(browser, "#failed:not([hidden])")
        == "This report has no tensor step9/nowhere:output.0."
    )
    assert text(browser, "#tensor-name") == CULPRIT


def test_hostile_name_in_an_address_is_text(browser: Any, pages: Pages) -> None:
    visit(browser, pages["hostile"])
    click(browser, ".evidence button")
    name = text(browser, "#tensor-name")
    assert "<img" in name
    at(browser, pages["hostile"], browser.execute_script("return location.hash"))
    assert text(browser, "#tensor-name") == name


def test_fold_layers_folds_after_one_was_folded_by_hand(browser: Any, pages: Pages) -> None:
    visit(browser, pages["failing"])
    before = rows(browser)
    click(browser, "#rows .row[aria-level='3'] .fold")
    by_hand = rows(browser)
    assert text(browser, "#fold") == "Fold layers"
    click(browser, "#fold")
    assert rows(browser) < by_hand < before
    assert text(browser, "#fold") == "Unfold all"
    click(browser, "#fold")
    assert rows(browser) == before


def test_evidence_in_a_folded_layer_is_unfolded(browser: Any, pages: Pages) -> None:
    visit(browser, pages["failing"])
    click(browser, "#fold")
    assert count(browser, ".cell.chosen:not(.sum)") == 0
    click(browser, ".evidence button")
    assert count(browser, ".cell.chosen:not(.sum)") == 1
    frame, cell = box(browser, "#heat"), box(browser, ".cell.chosen")
    assert frame["top"] < cell["top"] < cell["bottom"] < frame["bottom"]


@pytest.mark.parametrize("width", [360, 768, 1280, 1920])
def test_click_in_a_depth_plot_shows_the_panel(browser: Any, pages: Pages, width: int) -> None:
    from selenium.webdriver import Keys

    resize(browser, width, 720)
    visit(browser, pages["failing"])
    browser.execute_script(
        "const canvas = document.querySelectorAll('#charts canvas')[1];"
        "canvas.focus(); canvas.scrollIntoView({block: 'end'})"
    )
    press(browser, Keys.ARROW_RIGHT, Keys.ENTER)
    assert text(browser, "#tensor-name") != CULPRIT
    panel = box(browser, "#tensor")
    assert panel["top"] < 720 - 100
    assert panel["bottom"] > 100


def test_labels_of_depth_differ_from_their_neighbours(browser: Any, pages: Pages) -> None:
    for name in ("failing", "large"):
        visit(browser, pages[name])
        drawn = browser.execute_script(
            "return [...document.querySelectorAll('#charts canvas')]"
            ".map((canvas) => canvas.dataset.labels.split('\\n'))"
        )
        for labels in drawn:
            assert len(labels) > 3
            assert all(first != second for first, second in pairwise(labels))


def test_search_keeps_the_opened_tensor(browser: Any, pages: Pages) -> None:
    visit(browser, pages["failing"])
    search(browser, "wq")
    assert text(browser, "#tensor-name") == CULPRIT
