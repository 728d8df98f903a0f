"""Slots of the tensors in what modules take and return: two tensors never share one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ttrace.adapters.leaves import leaves, map_leaves

ONE, TWO, THREE = (torch.tensor(float(number)) for number in (1, 2, 3))


@pytest.mark.parametrize(
    ("value", "slots"),
    [
        (ONE, ["0"]),
        ((ONE, {"mask": TWO}), ["0", "1.mask"]),
        ({"layers.0": ONE, "norm": TWO}, ["layers.0", "norm"]),
        ({"a.b": ONE, "a": {"b": TWO}}, ["a.b", "a.b%"]),
        ({1: ONE, "1": TWO, "1%": THREE}, ["1", "1%", "1%%"]),
        ({"": ONE, "0": TWO}, ["0", "0%"]),
    ],
)
def test_every_tensor_has_a_slot_of_its_own(value: Any, slots: list[str]) -> None:
    assert [slot for slot, _ in leaves(value)] == slots


def test_keys_that_look_the_same_are_changed_apart() -> None:
    met = {}

    def doubled(slot: str, tensor: torch.Tensor) -> torch.Tensor:
        met[slot] = tensor
        return 2 * tensor

    value = {1: ONE, "1": TWO, "rest": [THREE]}
    changed = map_leaves(value, doubled)
    assert changed == {1: 2 * ONE, "1": 2 * TWO, "rest": [2 * THREE]}
    assert met == dict(leaves(value))
    assert value == {1: ONE, "1": TWO, "rest": [THREE]}
    assert map_leaves(value, lambda _, tensor: tensor) is value
