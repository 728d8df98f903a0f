"""What a name may be made of, and how it is shown."""

from __future__ import annotations

import copy
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttrace.core.results import CheckResult, NotEquivalent
from ttrace.errors import CommandFailed, TTraceError, UsageError
from ttrace.text import inert

TEXTS = st.text(st.characters(exclude_categories=()))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("layers.1.wq", "layers.1.wq"),
        ("naïve 日本語 🙂 ## a [b]", "naïve 日本語 🙂 ## a [b]"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b]0;title\x07\x9b31m\x7f", r"\x1b]0;title\x07\x9b31m\x7f"),
        ("\u202egnp.exe\u2066\u200b\ufeff", r"\u202egnp.exe\u2066\u200b\ufeff"),
        ("\u2028\u2029\xa0\xad", r"\u2028\u2029\xa0\xad"),
        ("\udc80\ud83d", r"\udc80\ud83d"),
        ("\ufffe\uffff\U0010ffff", r"\ufffe\uffff\U0010ffff"),
        ("\u3164\ufe0f\U000e0100", r"\u3164\ufe0f\U000e0100"),
        ("##[error]a ###vso[b]", r"#\x23[error]a ##\x23vso[b]"),
        (r"a\nb", r"a\nb"),
    ],
)
def test_what_acts_is_written(text: str, shown: str) -> None:
    assert inert(text) == shown


@given(TEXTS)
def test_inert_text_is_one_line_of_visible_characters(text: str) -> None:
    shown = inert(text)
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert shown.encode().decode() == shown == inert(shown)
    assert not re.search(r"##\w*\[", shown)


@given(TEXTS)
def test_errors_quote_without_obeying(text: str) -> None:
    assert str(UsageError(f"no {text}")) == inert(f"no {text}")
    assert not str(UsageError(text)).lstrip().startswith("::")


def test_lines_of_an_error_are_those_that_it_was_given() -> None:
    error = UsageError("two faults:", "  a\nb", "  c")
    assert str(error) == "two faults:\n  a\\nb\n  c"
    assert str(copy.copy(error)) == str(error)


def test_last_lines_of_a_log_stay_lines() -> None:
    error = CommandFailed("it failed; the last lines:\n\tat 1\n\x1b[31mred")
    assert str(error).split("\n") == [
        "it failed; the last lines:",
        "        at 1",
        r"\x1b[31mred",
    ]
    assert str(copy.copy(error)) == str(error)


def test_failure_of_a_test_has_lines() -> None:
    result = CheckResult(reference="a", candidate="b", perturbed=(), tensors=())
    assert str(NotEquivalent("a\nb", result)) == "a\nb"
    assert isinstance(NotEquivalent("a", result), TTraceError)
