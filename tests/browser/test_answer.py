"""The verdict card: where, what, how sure, which ranks and what next, on the first screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.driving import WIDTHS, box, click, count, press, resize, text, texts
from tests.browser.made_pages import COMMANDS, Payload, changed, mesh
from tests.browser.screenshots import visit

pytestmark = pytest.mark.browser

Pages = dict[str, Path]
FACTS = ["Where", "What", "How sure", "Ranks", "Next"]


def test_five_facts_are_on_the_first_screen(browser: Any, pages: Pages) -> None:
    resize(browser, 1280, 720)
    visit(browser, pages["isolated"])
    assert texts(browser, "#answer > .card .facts dt") == FACTS
    assert box(browser, "#answer > .card .facts")["bottom"] < 720
    assert box(browser, ".code")["bottom"] < 720


def test_card_says_each_fact_once(browser: Any, pages: Pages) -> None:
    visit(browser, pages["isolated"])
    where, what, sure, ranks, following = texts(browser, "#answer > .card .facts dd")
    assert where.startswith("layers.2.feed_forward.w2, backward")
    assert what.startswith("missing all-reduce over tp")
    assert sure.startswith("certain 193,000x its tolerance")
    assert ranks.endswith("tp1 (ranks 1, 3)")
    assert all(command in following for _, command in COMMANDS)
    assert text(browser, "h1") == "NOT EQUIVALENT"  # the place is said once, by the card
    seen = browser.execute_script("return document.querySelector('header').innerText")
    assert "layers.2" not in seen


def test_everything_else_folds(browser: Any, tmp_path: Path) -> None:
    def three(data: Payload) -> None:
        data["cards"] = [data["cards"][0] | {"where": name} for name in ("first", "second", "last")]

    visit(browser, changed(tmp_path, three))
    assert count(browser, "details[open]") == 0
    assert text(browser, "#answer > details > summary") == "2 more root causes"
    assert count(browser, ".card") == 1
    click(browser, "#answer > details > summary")
    click(browser, "#answer .others summary")
    assert texts(browser, ".card .place") == ["first", "second"]
    click(browser, "#answer > .card > details > summary")
    assert "x what is allowed" in text(browser, "#answer > .card .evidence")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_grades_look_different(browser: Any, tmp_path: Path, dark: bool) -> None:
    looks = []
    for grade in ("certain", "strong", "borderline"):

        def graded(data: Payload, grade: str = grade) -> None:
            data["cards"][0]["grade"] = grade

        visit(browser, changed(tmp_path, graded), dark=dark)
        looks.append(
            browser.execute_script(
                "const style = getComputedStyle(document.querySelector('.grade'));"
                "return [style.backgroundColor, style.borderColor]"
            )
        )
    certain, strong, borderline = looks
    assert strong[0] == "rgba(0, 0, 0, 0)" != certain[0]
    assert strong[1] == certain[1] != borderline[1]


def test_pattern_that_is_not_known_is_hollow(browser: Any, tmp_path: Path) -> None:
    def unknown(data: Payload) -> None:
        data["cards"][0] |= {"badge": "no known pattern fits", "known": False}

    visit(browser, changed(tmp_path, unknown))
    look = "return getComputedStyle(document.querySelector('.badge')).borderStyle"
    assert browser.execute_script(look) == "dashed"


def bar(browser: Any) -> dict[str, float]:
    """Left edges of the marks: noise, tolerance and error."""
    places = browser.execute_script(
        "return [...document.querySelectorAll('.sure .mark')]"
        ".map((mark) => mark.getBoundingClientRect().x)"
    )
    return dict(zip(("noise", "allowed", "error"), places, strict=True))


def test_bar_is_logarithmic(browser: Any, tmp_path: Path) -> None:
    def even(data: Payload) -> None:
        data["cards"][0]["bar"] = {"noise": 1e-6, "allowed": 1e-4, "error": 1e-2}

    visit(browser, changed(tmp_path, even))
    marks = bar(browser)
    assert marks["allowed"] - marks["noise"] == pytest.approx(
        marks["error"] - marks["allowed"], abs=1
    )
    assert texts(browser, ".sure text") == ["tolerance 1e-4", "noise 1e-6", "error 0.01"]


@pytest.mark.parametrize(
    "numbers",
    [
        {"noise": None, "allowed": 6e-7, "error": 0.7},
        {"noise": 1e-7, "allowed": 6e-7, "error": "inf"},
        {"noise": 5e-7, "allowed": 6e-7, "error": 6.1e-7},
        {"noise": 0.0, "allowed": 0.0, "error": 1.0},
        {"noise": 1e-7, "allowed": 6e-7, "error": 3e-7},
    ],
)
def test_bar_of_any_numbers_has_no_words_over_each_other(
    browser: Any, tmp_path: Path, numbers: Payload
) -> None:
    def measured(data: Payload) -> None:
        data["cards"][0]["bar"] = numbers

    resize(browser, 360)
    visit(browser, changed(tmp_path, measured))
    assert browser.get_log("browser") == []
    boxes = browser.execute_script(
        "return [...document.querySelectorAll('.sure text')]"
        ".map((node) => node.getBoundingClientRect().toJSON())"
    )
    for first in boxes:
        assert first["left"] >= 0
        assert first["right"] <= 360
        for second in boxes:
            apart = first["right"] <= second["left"] or second["right"] <= first["left"]
            assert first == second or apart or first["bottom"] != second["bottom"]


def filled(browser: Any) -> list[int]:
    script = "return [...document.querySelectorAll('.rank.bad')].map((r) => Number(r.dataset.rank))"
    return sorted(browser.execute_script(script))


def test_mesh_fills_wrong_ranks_in_a_grid_of_its_axes(browser: Any, pages: Pages) -> None:
    visit(browser, pages["failing"])
    assert filled(browser) == [1, 3]
    places = browser.execute_script(
        "return [...document.querySelectorAll('.rank')]"
        ".map((node) => [node.dataset.rank, node.getAttribute('x'), node.getAttribute('y')])"
    )
    columns = {rank: x for rank, x, _ in places}
    rows = {rank: y for rank, _, y in places}
    assert columns["1"] == columns["3"] != columns["0"] == columns["2"]  # tp across
    assert rows["0"] == rows["1"] != rows["2"] == rows["3"]  # dp down
    assert texts(browser, ".rank title")[1] == "dp0 tp1 (rank 1)"


def test_stages_of_a_pipeline_are_columns_and_other_axes_are_blocks(
    browser: Any, tmp_path: Path
) -> None:
    def deep(data: Payload) -> None:
        data["mesh"] = mesh({"pp": 4, "dp": 2, "tp": 2})
        data["cards"][0]["ranks"] = {"words": "pp3", "wrong": [12, 13, 14, 15]}

    visit(browser, changed(tmp_path, deep))
    assert filled(browser) == [12, 13, 14, 15]
    assert count(browser, ".mesh figcaption") == 2
    last = "return [...document.querySelectorAll('.rank.bad')].map((r) => r.getAttribute('x'))"
    assert len(set(browser.execute_script(last))) == 1


@pytest.mark.parametrize("sizes", [{}, {"dp": 64}, {"dp": 64, "pp": 8, "tp": 8}])
@pytest.mark.parametrize("width", [360, 1280])
def test_mesh_of_any_size_fits(
    browser: Any, tmp_path: Path, sizes: dict[str, int], width: int
) -> None:
    def sized(data: Payload) -> None:
        data["mesh"] = mesh(sizes) if sizes else mesh({"": 4}) | {"axes": [], "sizes": []}

    resize(browser, width)
    visit(browser, changed(tmp_path, sized))
    assert browser.execute_script("return document.documentElement.scrollWidth") == width
    assert filled(browser) == [1, 3]
    assert box(browser, ".mesh")["height"] < 400


def test_ranks_of_which_none_stands_out_are_all_drawn_alike(browser: Any, tmp_path: Path) -> None:
    def alike(data: Payload) -> None:
        data["cards"][0]["ranks"] = {"words": "not known", "wrong": []}

    visit(browser, changed(tmp_path, alike))
    assert (count(browser, ".rank.even"), filled(browser)) == (4, [])


def test_own_code_is_shown_and_framework_code_folds(browser: Any, pages: Pages) -> None:
    visit(browser, pages["failing"])
    assert text(browser, ".code figcaption") == "model.py:121 in FeedForward.forward"
    assert text(browser, ".code .line.here") == "121        x = copy_to(x, self.tp)"
    assert count(browser, ".code .line") == 6
    assert text(browser, ".excerpts details:not([open]) summary").endswith("linear.py:130")


def copied(browser: Any) -> str:
    return str(browser.execute_script("return window.copied"))


def test_issue_and_commands_are_copied(browser: Any, pages: Pages) -> None:
    from selenium.webdriver import Keys

    visit(browser, pages["failing"])
    browser.execute_script(
        "const writeText = async (text) => { window.copied = text; };"
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText}})"
    )
    browser.execute_script("document.querySelector('#actions button').focus()")
    press(browser, Keys.ENTER)
    assert copied(browser).startswith("### TTrace: NOT EQUIVALENT")
    assert text(browser, "#said").startswith("Copied")
    for n, (_, command) in enumerate(COMMANDS):
        browser.execute_script(
            "document.querySelectorAll('.command button')[arguments[0]].focus()", n
        )
        press(browser, Keys.ENTER)
        assert copied(browser) == command


def test_copy_works_without_a_clipboard_of_the_page(browser: Any, pages: Pages) -> None:
    """As in browsers that lend it to no file; the button keeps the focus."""
    from selenium.webdriver import Keys

    visit(browser, pages["failing"])
    browser.execute_script(
        "Object.defineProperty(navigator, 'clipboard', {value: undefined});"
        "addEventListener('copy', () => { window.copied = document.activeElement.value; });"
        "document.querySelector('.command button').focus()"
    )
    press(browser, Keys.ENTER)
    assert copied(browser) == COMMANDS[0][1]
    assert browser.execute_script("return document.activeElement.textContent") == "Copied"


@pytest.mark.parametrize("width", WIDTHS)
def test_card_without_code_command_or_pattern_is_drawn(
    browser: Any, tmp_path: Path, width: int
) -> None:
    def bare(data: Payload) -> None:
        first = data["cards"][0]
        nothing: Payload = {"code": [], "commands": [], "looks": "", "look_for": "", "bar": None}
        data["cards"] = [
            first | nothing | {"class": "", "source": "", "evidence": [], "reason": ""}
        ]
        data["mesh"] = mesh({"": 1}) | {"axes": [], "sizes": []}

    resize(browser, width)
    visit(browser, changed(tmp_path, bare))
    assert browser.get_log("browser") == []
    assert texts(browser, ".card .facts dt") == FACTS
    assert count(browser, ".mesh, .code, .sure") == 0
