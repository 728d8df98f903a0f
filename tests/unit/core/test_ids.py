"""Kinds of tensors and the text of an id."""

from __future__ import annotations

from itertools import groupby

import pytest

from ttrace.core.ids import Kind, KindGroup, TensorId, blocks_of, root_of, roots_of


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
    assert str(id_) == before + module + after


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
