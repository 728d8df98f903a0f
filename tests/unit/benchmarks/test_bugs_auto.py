"""The page of bugs by fingerprints says what differs, and is the one of what was kept."""

import json

from benchmarks.bugs.auto import FEWEST_SUMS, JSON, PAGE
from benchmarks.bugs.auto_table import Entry, Side, page

WRONG = Side(named=["layers.1, backward"], plain=1, size_bytes=1_000, seconds=2.0)
NOTHING = Side(named=[], plain=0, size_bytes=10, seconds=1.0)


def test_the_page_is_that_of_what_was_kept() -> None:
    kept = {key: Entry.read(entry) for key, entry in json.loads(JSON.read_text()).items()}
    assert PAGE.read_text() == page(kept, missing=0, sums=FEWEST_SUMS)


def test_a_place_that_auto_misses_and_an_alarm_are_said() -> None:
    missed = Entry(full=WRONG, auto=NOTHING, same=False, is_silent=False)
    right = Entry(full=WRONG, auto=WRONG, same=True, is_silent=True)
    text = page({"native/one": missed, "demo/two": right}, missing=3, sums=64)
    line = "| `one` | nothing | no: layers.1, backward | alarm | found | passes | 1,000 | 10 |"
    assert line in text
    assert "| `two` | layers.1, backward | yes | silent | found | found |" in text
    assert "The same places: 1 of 2. Silent twins: 1 of 2." in text
    assert "Not tried yet: 3." in text
    assert not missed.is_right
