from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.support.capturing import Calling, record


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass
class Result:
    logits: Tensor
    hidden: tuple[Tensor, ...]
    name: str = "result"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def run(model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
    loss = model(*args, **kwargs).mean()
    loss.backward()
    return loss


@pytest.mark.parametrize(
    ("make", "slots"),
    [
        (lambda a, b: (a, b), ["0", "1"]),
        (lambda a, b: [a, (b, None)], ["0", "1.0"]),
        (lambda a, b: {"a": a, "more": {"b": b}, "n": 3}, ["a", "more.b"]),
        (Pair, ["0", "1"]),
        (lambda a, b: Result(a, (b,)), ["logits", "hidden.0"]),
        (lambda a, b: torch.max(torch.stack([a, b]), 0), ["0", "1"]),
    ],
    ids=["tuple", "list", "dict", "namedtuple", "dataclass", "return type"],
)
@pytest.mark.parametrize("noise", [None, 1])
def test_every_tensor_of_a_structure_has_a_slot(
    make: Callable[..., Any], slots: list[str], noise: int | None, tmp_path: Path
) -> None:
    """With noise the structure is built anew, and the consumer must find the same kind."""
    kinds: list[type] = []

    def consume(_: nn.Module, value: Any) -> Tensor:
        kinds.append(type(value))
        return sum(leaf.sum() for leaf in floats(value))  # type: ignore[return-value]

    body = Calling(lambda _, x: make(x * 2, x * 3))
    model = Calling(lambda self, x: self.consume(self.body(x)), body=body, consume=Calling(consume))
    x = torch.ones(2, 3, requires_grad=True)
    trace = record(tmp_path, model, lambda: run(model, x), noise_seed=noise)
    assert kinds == [type(make(x, x))]
    assert trace.summary.faults == ()
    found = {name.partition(".")[2] for name in trace.ids if name.startswith("body:output")}
    assert found == set(slots)
    taken = {name.partition(".")[2] for name in trace.ids if name.startswith("consume:input")}
    assert taken == {f"0.{slot}" for slot in found}


def floats(value: Any) -> list[Tensor]:
    value = (value.logits, value.hidden) if isinstance(value, Result) else value
    found = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
    return [leaf for leaf in found if leaf.is_floating_point()]


def test_a_call_with_keywords_only_has_slots_by_name(tmp_path: Path) -> None:
    child = Calling(lambda _, *, x, scale: x * scale)
    model = Calling(lambda self, **named: self.child(**named), child=child)
    x, scale = torch.ones(2, requires_grad=True), torch.tensor(3.0)
    trace = record(tmp_path, model, lambda: run(model, x=x, scale=scale))
    assert torch.equal(trace.value("child:input.x"), torch.ones(2))
    assert torch.equal(trace.value("child:input.scale"), scale)
    assert torch.equal(trace.value(":grad_input.x"), torch.full((2,), 1.5))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.uint8])
def test_integers_and_bools_are_recorded_without_a_gradient(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    model = Calling(lambda self, x: self.linear(x.float()), linear=nn.Linear(2, 1))
    x = torch.tensor([[0, 1], [1, 1]]).to(dtype)
    trace = record(tmp_path, model, lambda: run(model, x))
    assert trace.value(":input.0").dtype == dtype
    assert torch.equal(trace.value(":input.0"), x)
    assert ":grad_input.0" not in trace.ids


@pytest.mark.parametrize("shape", [(), (0, 3)])
def test_scalars_and_empty_tensors_are_recorded(shape: tuple[int, ...], tmp_path: Path) -> None:
    model = Calling(lambda _, x: x * 2)
    x = torch.ones(shape, requires_grad=True)
    trace = record(tmp_path, model, lambda: run(model, x) if x.numel() else model(x))
    assert torch.equal(trace.value(":output.0"), 2 * x.detach())


def test_a_tensor_that_is_not_contiguous_keeps_its_values(tmp_path: Path) -> None:
    model = Calling(lambda _, x: x.T * 1)
    x = torch.arange(6.0).reshape(2, 3)
    trace = record(tmp_path, model, lambda: model(x.T))
    assert torch.equal(trace.value(":input.0"), x.T)


def test_a_module_called_twice_has_a_number_for_each_call(tmp_path: Path) -> None:
    model = Calling(lambda self, x: self.linear(self.linear(x)), linear=nn.Linear(3, 3))
    trace = record(tmp_path, model, lambda: run(model, torch.ones(2, 3)))
    assert torch.equal(trace.value("linear:output.0"), trace.value("linear#1:input.0"))
    assert torch.equal(trace.value("linear#1:output.0"), trace.value(":output.0"))
    assert {"linear:grad_output.0", "linear#1:grad_output.0"} < trace.ids
    assert len(trace.records("linear:main_grad.weight")) == 1


def test_call_numbers_start_again_in_every_microbatch(tmp_path: Path) -> None:
    model = Calling(lambda self, x: self.linear(self.linear(x)), linear=nn.Linear(3, 3))
    step = lambda: [run(model, x) for x in torch.ones(2, 2, 3)]  # noqa: E731
    trace = record(tmp_path, model, step)
    assert [found.microbatch for found in trace.records("linear#1:output.0")] == [0, 1]
    assert "linear#2:output.0" not in trace.ids


def test_a_shared_module_is_recorded_under_its_first_name(tmp_path: Path) -> None:
    shared = nn.Linear(3, 3)
    model = Calling(lambda self, x: self.two(self.one(x)), one=shared, two=shared)
    trace = record(tmp_path, model, lambda: run(model, torch.ones(2, 3)))
    assert {"one:output.0", "one#1:output.0"} < trace.ids
    assert not any(name.startswith("two") for name in trace.ids)
    assert trace.summary.never_called == ()


def test_modules_never_called_are_named_and_containers_are_not(tmp_path: Path) -> None:
    model = Calling(
        lambda self, x: self.layers[0](x),
        layers=nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]),
        table=nn.ModuleDict({"unused": nn.Linear(3, 3)}),
        numbers=nn.ParameterDict({"a": torch.ones(1)}),
        holder=Holder(),
    )
    summary = record(tmp_path, model, lambda: run(model, torch.ones(2, 3))).summary
    assert summary.never_called == ("layers.1", "table.unused", "holder.inner")


class Holder(nn.Module):
    """Has children but no forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()


def test_an_output_that_becomes_an_input_is_stored_once(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    trace = record(tmp_path, model, lambda: run(model, torch.ones(2, 3)))
    made, taken = trace.record("0:output.0"), trace.record("1:input.0")
    assert made.location is not None
    assert taken.location == made.location
    assert (made.same_as, taken.same_as) == (None, made.id)
    mention = trace.record("1:grad_input.0")
    assert (mention.location, mention.same_as) == (None, trace.record("0:grad_output.0").id)


def test_other_tensors_with_the_same_values_are_stored_apart(tmp_path: Path) -> None:
    model = Calling(
        lambda self, x: self.two(self.one(x) * 1), one=nn.Linear(3, 3), two=nn.Linear(3, 3)
    )
    trace = record(tmp_path, model, lambda: run(model, torch.ones(2, 3)))
    made, taken = trace.record("one:output.0"), trace.record("two:input.0")
    assert made.location is not None
    assert taken.location is not None
    assert made.location.xxh3 == taken.location.xxh3
    assert made.location.offset != taken.location.offset
    assert trace.record("two:grad_input.0").location is not None


def test_a_parameter_passed_to_a_module_has_its_gradient_once(tmp_path: Path) -> None:
    """It is the same leaf in every microbatch and every step."""
    model = Calling(
        lambda self, x: self.add(x, self.table.weight), table=nn.Linear(3, 2), add=Add()
    )
    step = lambda: [run(model, x) for x in torch.ones(2, 2, 3)]  # noqa: E731
    trace = record(tmp_path, model, step, steps=2)
    assert trace.summary.faults == ()
    assert "add:input.1" in trace.ids
    assert "add:grad_input.1" not in trace.ids
    assert len(trace.records("step1/table:main_grad.weight")) == 1


def test_a_leaf_used_in_two_steps_has_a_gradient_in_each(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    x = torch.ones(2, 3, requires_grad=True)
    trace = record(tmp_path, model, lambda: run(model, x), steps=2)
    assert [len(trace.records(f"step{step}/:grad_input.0")) for step in (0, 1)] == [1, 1]
    assert trace.summary.hooks_fired == trace.summary.hooks_expected
    assert not x._backward_hooks


class Add(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right
