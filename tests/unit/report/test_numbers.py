"""How many times its tolerance an error is, in words that can be read aloud; counted nouns."""

from __future__ import annotations

import math
import re

import pytest

from ttrace.report.catalogue import culprits, notes, tensors
from ttrace.report.catalogue.sentences import Line
from ttrace.report.numbers import counted, filled, times


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (0.0, "0x"),
        (1e-7, "below 0.001x"),
        (0.333, "0.33x"),
        (1.0, "1x"),
        (1.07, "1.1x"),
        (1.83, "1.8x"),
        (9.96, "10x"),
        (12.34, "12.3x"),
        (40.0, "40x"),
        (271.4, "271x"),
        (2718.0, "2,720x"),
        (193_456.0, "193,000x"),
        (999_499.0, "999,000x"),
        (999_600.0, "1 million x"),
        (1.43e7, "14 million x"),
        (2.7e7, "27 million x"),
        (9.99e8, "1 billion x"),
        (3.2e10, "32 billion x"),
        (4e13, "40 trillion x"),
        (3e24, "10^24 x"),
        (math.inf, "far beyond"),
        (math.nan, "far beyond"),
    ],
)
def test_times(ratio: float, said: str) -> None:
    assert times(ratio) == said


def test_nouns_follow_their_number() -> None:
    assert [counted(n, "module") for n in (0, 1, 2)] == ["0 modules", "1 module", "2 modules"]
    template = "{count:tensor is/tensors are} wrong, {count:|it differs/they differ} by {size:.2g}"
    assert filled(template, count=1, size=0.123) == "1 tensor is wrong, it differs by 0.12"
    assert filled(template, count=12, size=4) == "12 tensors are wrong, they differ by 4"


def test_no_sentence_has_a_plural_behind_a_bare_count() -> None:
    """What a count of one would make wrong: {count} tensors; a noun belongs into the braces."""
    bare = re.compile(
        r"\{(?:count|total|failures|modules|runs|expected|compared|elements)\} \w+s\b"
    )
    rows = (culprits.REASONS, culprits.MISTAKES, culprits.EXPECTED, tensors.FINDINGS)
    texts = [row.words for table in rows for row in table.values()]
    texts += [*notes.TOPICS.values(), *notes.LOST.values(), *(sentence.value for sentence in Line)]
    found = [text for text in texts if bare.search(text)]
    assert [text for text in found if "parameters and states" not in text] == []
    assert bare.search("{count} tensors differ")
