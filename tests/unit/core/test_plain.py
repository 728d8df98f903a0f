"""Dataclasses become plain data and come back by their annotations."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pytest

from ttrace.core.door import INLINE, from_dict, key, to_dict
from ttrace.core.ids import TensorId


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    value: float
    places: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    name: str
    inner: Inner = field(metadata=INLINE)
    others: tuple[Inner, ...] = ()
    id: TensorId | None = None
    colour: Colour | str = Colour.RED
    sizes: dict[str, int] = field(default_factory=dict)
    path: Path = Path()
    class_name: str = field(default="", metadata=key("class"))
    within: Outer | None = None


FULL = Outer(
    name="a",
    inner=Inner(value=math.inf, places=((1, 2), (3, 4))),
    others=(Inner(value=1.5),),
    id=TensorId.parse("step0/a.b:output.0"),
    colour="green",
    sizes={"dp": 2},
    path=Path("a") / "b",
    class_name="Linear",
    within=Outer(name="b", inner=Inner(value=2.0)),
)


@pytest.mark.parametrize("made", [FULL, Outer(name="a", inner=Inner(value=-1.0))])
def test_what_goes_out_comes_back(made: Outer) -> None:
    assert from_dict(Outer, json.loads(json.dumps(to_dict(made)))) == made


def test_keys_are_those_of_fields_unless_another_is_given() -> None:
    data = to_dict(FULL)
    assert (data["value"], data["places"]) == (math.inf, [[1, 2], [3, 4]])
    assert (data["id"], data["colour"], data["path"]) == ("step0/a.b:output.0", "green", "a/b")
    assert data["class"] == "Linear"
    assert not {"inner", "class_name"} & set(data)


def test_numbers_may_be_text_and_missing_keys_take_defaults() -> None:
    assert from_dict(Inner, {"value": "nan", "unknown": 1}).places == ()
    assert from_dict(Inner, {"value": "-inf"}).value == -math.inf
    assert from_dict(Outer, {"name": "", "value": 1, "colour": "red"}).colour is Colour.RED
