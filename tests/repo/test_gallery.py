"""The gallery has a small picture for every kind of mistake, each of a bug that is there."""

import re
from pathlib import Path

from tests.browser.gallery import KINDS
from tests.browser.gallery import WHOLE as MADE
from zoo.bug import Family
from zoo.registry import bugs

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/gallery.md").read_text()
CARDS = dict(re.findall(r"!\[The card of ([\w-]+)\]\(\.\./images/gallery/([\w-]+)\.png\)", PAGE))
WHOLE = re.findall(r"images/gallery/page-([\w-]+)\.png", PAGE)
MOST_BYTES = 60_000  # of a card; chosen: a clone stays small


def test_the_page_shows_what_the_command_makes() -> None:
    assert {bug: kind for kind, bug in KINDS.items()} == CARDS
    assert tuple(WHOLE) == MADE


def test_every_bug_is_one_of_the_zoo() -> None:
    known = {bug.name for family in (Family.NATIVE, Family.DEMO) for bug in bugs(family)}
    assert {*CARDS, *WHOLE} <= known


def test_pictures_are_there_and_small() -> None:
    folder = ROOT / "docs/images/gallery"
    made = {file.stem: file.stat().st_size for file in folder.glob("*.png")}
    assert set(made) == {*CARDS.values(), *(f"page-{bug}" for bug in WHOLE)}
    assert [name for name in CARDS.values() if made[name] > MOST_BYTES] == []
