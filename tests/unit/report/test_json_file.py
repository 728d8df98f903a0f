"""JSON that any reader takes: it has no NaN and no infinity, wherever they stand."""

from __future__ import annotations

import json
import math

import pytest

from ttrace.report.json_file import dumps


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (math.inf, "inf"),
        ([1.5, math.nan], [1.5, "nan"]),
        ({"a": {"b": -math.inf}}, {"a": {"b": "-inf"}}),
        ([{"a": (1, math.inf)}, {"a": []}], [{"a": [1, "inf"]}, {"a": []}]),
        (((1, 2), (3,)), [[1, 2], [3]]),
    ],
)
def test_numbers_that_json_has_not_are_text(data: object, found: object) -> None:
    assert json.loads(dumps(data), parse_constant=pytest.fail) == found


def test_every_entry_of_a_list_has_a_line() -> None:
    assert dumps({"a": [{"b": 1}, {"b": 2}], "c": [1, 2]}) == (
        '{\n "a": [\n  {"b":1},\n  {"b":2}\n ],\n "c": [1, 2]\n}\n'
    )
