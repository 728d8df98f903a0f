"""Kinds of tensors and the text of an id."""

from __future__ import annotations

from itertools import groupby

import pytest

from ttrace.core.ids import (
    Kind,
    KindGroup,
    TensorId,
    blocks_of,
    distinct,
    module_text,
    root_of,
    roots_of,
)
from ttrace.errors import UsageError


def test_every_kind_has_a_group_and_groups_follow_each_other() -> None:
    assert [group for group, _ in groupby(Kind, key=lambda kind: kind.group)] == list(KindGroup)


def test_gradient_of_an_activation_belongs_to_a_value() -> None:
    assert Kind.GRAD_INPUT.forward is Kind.INPUT
    assert Kind.GRAD_OUTPUT.forward is Kind.OUTPUT
    others = [kind for kind in Kind if not kind.is_gradient_of_activation]
    assert [kind.forward for kind in others] == others


@pytest.mark.parametrize("module", ["", "layers.1.wq", "a#2:b/c"])
@pytest.mark.parametrize(("call", "slot"), [(0, ""), (3, "weight.master")])
def test_text_of_an_id_is_its_module_and_what_stands_around_it(
    module: str, call: int, slot: str
) -> None:
    id_ = TensorId(step=2, module=module, kind=Kind.OPTIMIZER, call=call, slot=slot)
    before, after = id_.around_module
    assert str(id_) == before + module_text(module) + after


def test_id_is_read_from_its_text() -> None:
    for text in ("step0/wq:output.0", "step12/layers.1.wq#3:input.0", "step0/:loss"):
        assert str(TensorId.parse(text)) == text


@pytest.mark.parametrize(
    ("paths", "blocks"),
    [
        ("embed layers layers.0 layers.0.experts.0 layers.1 head", {"", "layers.0", "layers.1"}),
        ("model model.layers.0 model.layers.0.mlp.1", {"", "model.layers.0"}),
        ("stem stem.conv head", {"", "stem", "head"}),
        ("", {""}),
    ],
)
def test_blocks_stand_in_the_outermost_list(paths: str, blocks: set[str]) -> None:
    assert blocks_of(["", *paths.split()]) == blocks


def test_text_tells_calls_without_gradients_and_later_turns_of_backward() -> None:
    apart = TensorId.parse("step0/wq~no_grad#3:input.0")
    assert (apart.module, apart.apart, apart.call) == ("wq", True, 3)
    asked = TensorId.parse("step0/wq:grad_output@grad1.0")
    assert (asked.asked, asked.turn, str(asked.forward)) == (True, 1, "step0/wq:output.0")
    assert str(asked) == "step0/wq:grad_output@grad1.0"
    later = TensorId.parse("step0/wq#1:grad_output@2.0")
    assert (later.kind, later.turn, later.slot) == (Kind.GRAD_OUTPUT, 2, "0")
    assert str(later.forward) == "step0/wq#1:output.0"
    assert [str(id_) for id_ in (apart, later)] == [
        "step0/wq~no_grad#3:input.0",
        "step0/wq#1:grad_output@2.0",
    ]


@pytest.mark.parametrize(
    ("paths", "roots"),
    [
        (["", "a", "a.b"], {""}),
        (["gen", "gen.a", "disc", "disc.gen"], {"gen", "disc"}),
        ([], set()),
    ],
)
def test_roots_stand_in_no_other_module(paths: list[str], roots: set[str]) -> None:
    assert roots_of(paths) == roots
    for path in paths:
        assert root_of(path, roots_of(paths)) == (path.split(".")[0] if "" not in roots else "")


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("a#1", r"step0/a\#1:output.0"),
        ("a:output.0", r"step0/a\:output.0:output.0"),
        ("a~no_grad", r"step0/a\~no_grad:output.0"),
        ("a\\", "step0/a\\\\:output.0"),
        ("a\nb", r"step0/a\nb:output.0"),
        ("a\x1b[2J", r"step0/a\x1b[2J:output.0"),
        ("\udc80\u202e", r"step0/\udc80\u202e:output.0"),
        ("step1/b@2.c", "step0/step1/b@2.c:output.0"),
        ("日本語", "step0/日本語:output.0"),
    ],
)
def test_names_that_look_like_the_text_of_an_id_are_escaped(module: str, text: str) -> None:
    id_ = TensorId(step=0, module=module, kind=Kind.OUTPUT, slot="0")
    assert str(id_) == text
    assert TensorId.parse(text) == id_


def test_a_child_is_no_second_call() -> None:
    child = TensorId(step=0, module="a#1", kind=Kind.OUTPUT, slot="0")
    again = TensorId(step=0, module="a", kind=Kind.OUTPUT, slot="0", call=1)
    assert str(child) != str(again) == "step0/a#1:output.0"
    assert TensorId.parse("step0/a#1:output.0") == again


def test_texts_of_earlier_versions_are_read_as_they_were() -> None:
    """They had no escapes: a backslash that begins none of ours is one."""
    assert TensorId.parse(r"step0/back\slash\[:output.0").module == r"back\slash\["
    assert TensorId.parse("step0/a:b:output.0").module == "a:b"


@pytest.mark.parametrize("text", ["step" + "9" * 5000 + "/a:output.0", "step٣/a:output.0", "a"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a tensor id"):
        TensorId.parse(text)


def test_equal_names_become_distinct() -> None:
    names = ["a", "b", "a", "a%", "a"]
    assert [name for name, _ in distinct((n, None) for n in names)] == [
        "a",
        "b",
        "a%",
        "a%%",
        "a%%%",
    ]
