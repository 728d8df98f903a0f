"""Reading for everyone: any width, light, dark, on paper, and with a keyboard only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.browser.driving import (
    WIDTHS,
    box,
    click,
    count,
    focused,
    mouse,
    press,
    print_media,
    resize,
    screen_media,
    search,
    settle,
    text,
    texts,
)
from tests.browser.made_pages import Payload, changed, place_of
from tests.browser.screenshots import visit
from tests.support.made_results import made
from ttrace.core.ids import Kind
from ttrace.core.results import Verdict
from ttrace.report.catalogue.tensors import VERDICTS

pytestmark = pytest.mark.browser

Pages = dict[str, Path]
ALL = ("clean", "failing", "isolated", "steps", "hostile", "large")
CELL = ".row[aria-level='4'] .cell[data-tensor]:not(.sum):not(.chosen)"
CUT = """
const heat = document.querySelector('#heat'), frame = heat.getBoundingClientRect();
const last = [...document.querySelectorAll('#columns .kind')].pop().getBoundingClientRect();
return [heat.scrollWidth - heat.clientWidth, last.right - frame.right];
"""


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("width", [320, *WIDTHS])
def test_page_never_scrolls_sideways(browser: Any, pages: Pages, name: str, width: int) -> None:
    resize(browser, width)
    visit(browser, pages[name], dark=width % 768 == 0)
    browser.execute_script(
        "document.querySelectorAll('details').forEach((d) => { d.open = true; })"
    )
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1280, 1440, 1920])
def test_last_column_is_not_cut(browser: Any, tmp_path: Path, width: int) -> None:
    """With every kind that there is."""

    def every(data: Payload) -> None:
        kinds = data["comparisons"][0]["kind"]
        kinds[-len(data["kinds"]) :] = range(len(data["kinds"]))

    resize(browser, width)
    visit(browser, changed(tmp_path, every))
    assert count(browser, "#columns .kind") == len(Kind)
    hidden, beyond = browser.execute_script(CUT)
    assert hidden == 0
    assert beyond <= 0


def test_narrow_screen_scrolls_the_map_under_its_names(browser: Any, pages: Pages) -> None:
    resize(browser, 360)
    visit(browser, pages["failing"])
    hidden, _ = browser.execute_script(CUT)
    assert hidden > 0
    browser.execute_script("document.querySelector('#heat').scrollLeft = 1000")
    frame, name = box(browser, "#heat"), box(browser, "#rows .name")
    assert name["left"] == pytest.approx(frame["left"] + 1, abs=1)


def test_heads_and_labels_for_a_screen_reader(browser: Any, pages: Pages) -> None:
    visit(browser, pages["isolated"])
    heads = texts(browser, "#heat [role=columnheader]")
    assert {"forward", "backward", "update", "grad input"} <= set(heads)
    assert count(browser, "#heat [role=gridcell][data-tensor]:not([aria-label])") == 0
    assert count(browser, "table th:not([scope])") == 0
    unnamed = browser.execute_script(
        "return [...document.querySelectorAll('input, select, button, canvas')]"
        ".filter((node) => !node.ariaLabel && !node.textContent.trim()).length"
    )
    assert unnamed == 0


def test_focus_is_kept_after_a_click(browser: Any, pages: Pages) -> None:
    visit(browser, pages["failing"])
    browser.execute_script("document.querySelector('#heat').scrollIntoView({block: 'center'})")
    for selector, frame, kept in (
        (CELL, "#heat", "heat"),
        (CELL, "#heat", "heat"),
        (".row[aria-level='3'] .fold", "#heat", "heat"),
        ("#fold", "body", "fold"),
    ):
        mouse(browser, selector, frame)
        assert focused(browser) == kept
        assert count(browser, "#cell-at") == 1


def test_click_opens_the_cell_under_the_mouse(browser: Any, pages: Pages) -> None:
    """Pressed and let go, before the map ever had the focus."""
    visit(browser, pages["failing"])
    browser.execute_script("document.querySelector('#heat').scrollIntoView({block: 'center'})")
    label = mouse(
        browser, ".cell[aria-label*='layers.2.feed_forward.w3:grad_output']:not(.sum)", "#heat"
    )
    assert label.startswith(f"{text(browser, '#tensor-name')}, ")
    assert count(browser, "#cell-at.chosen") == 1
    assert count(browser, "#tensor canvas.difference") == 1


def stops(browser: Any) -> list[str]:
    """Where Tab goes from the start of the page to its end; each must be in sight and seen."""
    from selenium.webdriver import Keys

    found: list[str] = []
    for _ in range(80):
        press(browser, Keys.TAB)
        if browser.execute_script("return document.activeElement === document.body"):
            break
        look = browser.execute_script(
            "const node = document.activeElement, box = node.getBoundingClientRect();"
            "const style = getComputedStyle(node);"
            "return [style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0,"
            " box.bottom > 0 && box.top < innerHeight]"
        )
        assert look == [True, True], focused(browser)
        found.append(focused(browser))
    return found


@pytest.mark.parametrize("width", [360, 1280])
def test_keyboard_goes_through_the_whole_page(browser: Any, pages: Pages, width: int) -> None:
    resize(browser, width, 720)
    visit(browser, pages["isolated"])
    found = stops(browser)
    assert len(found) < 80, "Tab never leaves the page"
    for wanted in ("a Skip", "button Copy as issue", "button Copy", "summary Evidence", "tab-1"):
        assert any(stop.startswith(wanted) for stop in found), wanted
    ids = [stop for stop in found if " " not in stop]
    assert [n for n in ids if n in {"tab-1", "search", "heat", "tensor"}] == [
        *("tab-1", "search", "heat", "tensor"),
    ]
    assert sum(stop.startswith("canvas") for stop in found) == 2
    assert sum(stop.startswith("summary") for stop in found) >= 5


def test_keyboard_opens_a_tensor_and_folds_a_module(browser: Any, pages: Pages) -> None:
    from selenium.webdriver import Keys

    visit(browser, pages["failing"])
    browser.execute_script("document.querySelector('#heat').focus()")
    before = text(browser, "#tensor-name")
    press(browser, Keys.ARROW_UP, Keys.ENTER)
    assert text(browser, "#tensor-name") != before
    assert text(browser, "#at").startswith(text(browser, "#tensor-name"))
    assert focused(browser) == "heat"
    press(browser, Keys.HOME, Keys.SPACE)
    assert browser.execute_script("return document.querySelector('#heat').ariaRowCount") == "3"
    press(browser, "/", "wq")
    assert browser.execute_script("return document.querySelector('#search').value") == "wq"


def test_keyboard_brings_a_hidden_column_into_sight(browser: Any, pages: Pages) -> None:
    from selenium.webdriver import Keys

    resize(browser, 360)
    visit(browser, pages["failing"])
    browser.execute_script("document.querySelector('#heat').focus()")
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_LEFT):
        press(browser, *[key] * 12)
        frame, cell = box(browser, "#heat"), box(browser, "#cell-at")
        assert frame["left"] + 119 <= cell["left"]
        assert cell["right"] <= frame["right"]


def test_chart_is_read_by_arrow_keys(browser: Any, pages: Pages) -> None:
    from selenium.webdriver import Keys

    visit(browser, pages["failing"])
    browser.execute_script("document.querySelector('#charts canvas').focus()")
    press(browser, Keys.ARROW_RIGHT)
    assert text(browser, "#said").startswith("step0/")
    assert count(browser, "#tip:not([hidden])") == 1


def test_terms_are_explained_by_keyboard_by_mouse_and_to_a_reader(
    browser: Any, pages: Pages
) -> None:
    from selenium.webdriver import ActionChains, Keys

    visit(browser, pages["failing"])
    terms = texts(browser, "#tensor .term")
    assert {"mismatch", "norm", "row", "grad input"} <= set(terms)
    browser.execute_script("document.querySelector('#tensor .term').focus()")
    settle(browser)
    assert text(browser, "#tip:not([hidden])") == VERDICTS[Verdict.MISMATCH].term
    described = (
        "const id = document.activeElement.getAttribute('aria-describedby');"
        "return document.getElementById(id).textContent"
    )
    assert browser.execute_script(described) == VERDICTS[Verdict.MISMATCH].term
    press(browser, Keys.ESCAPE)
    assert count(browser, "#tip:not([hidden])") == 0
    conflict = browser.execute_script(
        "return document.querySelector('#legend [aria-describedby=term-conflict]')"
    )
    ActionChains(browser).move_to_element(conflict).perform()
    settle(browser)
    assert text(browser, "#tip:not([hidden])") == VERDICTS[Verdict.CONFLICT].term
    assert set(texts(browser, "#glossary dt")) >= {"gain", "shift", "slice", "conflict"}


def test_filter_that_matches_nothing_says_so(browser: Any, pages: Pages) -> None:
    visit(browser, pages["failing"])
    before = text(browser, "#matches")
    search(browser, "no such tensor")
    seen = "return document.querySelector('#compared').innerText"
    assert "No tensor matches." in browser.execute_script(seen)
    assert text(browser, "#matches").startswith("0 of")
    click(browser, "#clear")
    assert text(browser, "#matches") == before
    assert focused(browser) == "search"
    assert "No tensor matches." not in browser.execute_script(seen)


def test_report_that_compared_nothing_says_so(browser: Any, tmp_path: Path) -> None:
    visit(browser, changed(tmp_path, lambda data: None, replace(made(2), tensors=())))
    assert browser.get_log("browser") == []
    seen = browser.execute_script("return document.querySelector('#spread').innerText")
    assert "No tensor was compared." in seen
    assert "Clear the filters" not in seen
    assert "depth" not in seen


def test_worst_elements_name_ranks_by_their_place(browser: Any, pages: Pages) -> None:
    visit(browser, pages["failing"])
    cells = texts(browser, "table[aria-label='Worst elements'] tbody tr:first-child > *")
    assert cells == ["(0, 17, 32)", "0.3", "0", "dp1 tp0"]
    holders = texts(browser, "table[aria-label='Who holds what'] tbody th")
    assert holders == ["dp0 tp0", "dp0 tp1", "dp1 tp0", "dp1 tp1"]


def test_scalar_is_one_line_a_rank(browser: Any, tmp_path: Path) -> None:
    """An error that is the same on every rank is seen as such."""

    def loss(data: Payload) -> None:
        comparison = data["comparisons"][0]
        number = place_of(data, Kind.LOSS)
        detail = next(iter(comparison["details"].values())) | {"rows": [], "ulp": []}
        values: Payload = {
            "elements": [[[], 2.0, 2.98, [0]]],
            "scalars": [[n, 2.98] for n in range(4)],
        }
        comparison["details"][number] = detail | values
        data["cards"][0]["evidence"][0]["id"] = "step0/:loss"

    page = changed(tmp_path, loss)
    visit(browser, page)
    rows = texts(browser, "table[aria-label='Value on every rank'] tbody tr")
    assert rows == ["reference2", *(f"dp{d} tp{t}2.98+49%" for d in (0, 1) for t in (0, 1))]
    assert count(browser, "table[aria-label='Worst elements']") == 0


def test_configuration_shows_only_what_differs(browser: Any, tmp_path: Path) -> None:
    def configured(data: Payload) -> None:
        data["configuration"] |= {
            "differ": [["world size", "1", "4", "expected"], ["seed of data", "0", "1", "differs"]],
            "same": [["dtype", "float32"], ["device", "cpu"]],
        }

    visit(browser, changed(tmp_path, configured))
    assert text(browser, "#runs-told") == "1 unexpected difference"
    rows = "table[aria-label='What differs'] tbody tr"
    assert texts(browser, f"{rows}.differs") == ["seed of data01≠ differs"]
    assert texts(browser, f"{rows}.calm") == ["world size14expected"]
    assert text(browser, "#settings details:not([open]) summary") == "2 settings are the same"


def test_what_was_captured_is_said_once_and_rightly(browser: Any, pages: Pages) -> None:
    visit(browser, pages["failing"])
    said = text(browser, "#captured")
    assert "gradient hooks fired. Every module was called" in said
    assert " of 117" not in said


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_printed_page_is_light_and_whole(browser: Any, pages: Pages, dark: bool) -> None:
    """In print every row of a small model is there, on paper, whatever the screen's colours are."""
    visit(browser, pages["failing"], dark=dark)
    rows = int(browser.execute_script("return document.querySelector('#heat').ariaRowCount")) - 2
    print_media(browser, dark=dark)
    try:
        assert count(browser, "#printed tbody tr") == rows
        assert text(browser, "#printed-cut") == ""
        assert count(browser, "details:not([open]):not(.long)") == 0
        looks = browser.execute_script(
            "const style = getComputedStyle(document.body);"
            "return [style.color, style.backgroundColor]"
        )
        assert looks == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]
    finally:
        screen_media(browser)
    assert count(browser, "#printed tr, details[open]") == 0


def test_printed_cut_is_stated_and_keeps_what_is_wrong(browser: Any, pages: Pages) -> None:
    visit(browser, pages["large"])
    print_media(browser)
    try:
        rows = count(browser, "#printed tbody tr")
        assert rows == 400
        assert text(browser, "#printed-cut").startswith("400 of 1,6")
        assert "layers.100.feed_forward.w2" in texts(browser, "#printed tbody th")
        head = "return getComputedStyle(document.querySelector('#printed thead')).display"
        assert browser.execute_script(head) == "table-header-group"  # on every page
        assert box(browser, "#printed-cut")["height"] > 0
    finally:
        screen_media(browser)
