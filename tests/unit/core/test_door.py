"""What comes from outside has the types and sizes of its annotations, or is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest

from ttrace.core.door import Refused, from_dict, parse_json, read_bounded
from ttrace.core.ids import Kind, TensorId
from ttrace.core.limits import AtMost, Between, Digest, Label
from ttrace.errors import UsageError


@dataclass(frozen=True, slots=True)
class Listed:
    is_listed: ClassVar = True

    first: Annotated[int, Between(1, 3)]
    second: Label

    def __post_init__(self) -> None:
        if self.second == str(self.first):
            raise UsageError("both say the same")


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    whole: int = 0
    number: float = 0.0
    truth: bool = False
    text: Annotated[str, AtMost(3)] = ""
    digest: Digest = "0" * 16
    kind: Kind = Kind.INPUT
    id: TensorId | None = None
    pair: tuple[int, str] = (0, "")
    many: Annotated[tuple[Listed, ...], AtMost(2)] = ()
    named: dict[str, Listed] | None = None


GOOD: dict[str, Any] = {
    "whole": -3,
    "number": "inf",
    "truth": True,
    "text": "abc",
    "kind": "loss",
    "id": "step0/a:output.0",
    "pair": [1, "b"],
    "many": [[1, "a"], {"first": 2, "second": "b"}],
    "named": {"x": [3, "c"]},
}


def test_what_fits_is_made() -> None:
    made = from_dict(Everything, GOOD)
    assert made.many == (Listed(1, "a"), Listed(2, "b"))
    assert made.named == {"x": Listed(3, "c")}
    assert (made.kind, made.number, made.pair) == (Kind.LOSS, float("inf"), (1, "b"))


@pytest.mark.parametrize(
    ("field", "wrong", "told"),
    [
        ("whole", 1.0, "whole: found 1.0, expected a whole number of 64 bits"),
        ("whole", True, "whole: found True, expected a whole"),
        ("whole", 1 << 63, "expected a whole number of 64 bits"),
        ("number", None, "number: found None, expected a number"),
        ("number", False, "number: found False"),
        ("number", "far", "number: found 'far'"),
        ("number", 10**400, "number: found 1"),
        ("truth", 1, "truth: found 1, expected true or false"),
        ("text", "abcd", "text: found 'abcd', expected text of at most 3 characters"),
        ("text", None, "text: found None"),
        ("digest", "g" * 16, "digest: found 'gggggggggggggggg', expected text like"),
        ("digest", "0" * 16 + "\n", "digest: found"),
        ("kind", "smell", "kind: found 'smell', expected one of param, input"),
        ("kind", ["loss"], "kind: found ['loss']"),
        ("id", "a", "id: found 'a', expected a tensor id such as"),
        ("id", f"step{'9' * 5000}/a:output.0", "expected a tensor id such as"),
        ("pair", [1], "pair: found [1], expected a list of 2"),
        ("pair", [1, 2], "pair[1]: found 2, expected text"),
        ("many", [[1, "a"]] * 3, "expected a list of at most 2"),
        ("many", "ab", "many: found 'ab', expected a list"),
        ("many", [[1, "a"], [4, "a"]], "many[1].first: found 4, expected a number from 1 to 3"),
        ("many", [[1]], "many[0]: found [1], expected a list of 2 (Listed)"),
        ("many", [{"first": 1}], "many[0].second: found nothing, expected a value"),
        ("many", [[1, "1"]], "many[0]: found both say the same, expected a Listed that can be"),
        ("named", [], "named: found [], expected an object"),
        ("named", {"x": [0, ""]}, "named['x'].first: found 0"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(field: str, wrong: object, told: str) -> None:
    with pytest.raises(Refused) as caught:
        from_dict(Everything, {**GOOD, field: wrong})
    assert told in str(caught.value)


def test_fields_that_the_data_cannot_know_are_given() -> None:
    assert from_dict(Everything, {"whole": 7}, whole=1).whole == 1


@pytest.mark.parametrize("data", [[], None, "text", 3])
def test_only_an_object_is_an_object(data: object) -> None:
    with pytest.raises(Refused, match="expected an object"):
        from_dict(Everything, data)


def test_large_values_are_shown_in_a_line() -> None:
    with pytest.raises(Refused) as caught:
        from_dict(Everything, {"whole": [["x" * 1000] * 1000] * 1000})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "1" * 5000, b"\xff", '{"a": 1} x'])
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(Refused, match="found no JSON"):
        parse_json(text)


def test_file_that_is_too_long_is_not_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_bounded(file, 5) == b"12345"
    with pytest.raises(Refused, match="found more than 4 bytes"):
        read_bounded(file, 4)
