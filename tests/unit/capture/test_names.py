"""Modules may be called whatever Python lets them be called: each is recorded under its own ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import ttrace
from tests.support.capturing import Calling, Recorded, record
from ttrace.adapters.native.adapter import NativeAdapter
from ttrace.core.ids import Kind, TensorId

# Of what the text of an id is made of, and of what no text should have in it.
NAMES = (
    "a",
    "a#1",
    "a:output",
    "a~no_grad",
    "a@1",
    "step0/a",
    "a\\#1",
    "a\n\x1b[2J",
    "\udc80",
    "日",
)


def in_turn(self: Any, x: torch.Tensor) -> torch.Tensor:
    """All children, the first one twice."""
    for name in (*NAMES, NAMES[0]):
        x = self.get_submodule(name)(x)
    return x


def named() -> Any:
    return Calling(in_turn, **{name: nn.Linear(4, 4) for name in NAMES})


def recorded(folder: Path, noise_seed: int | None = None) -> Recorded:
    model = named()
    ttrace.generate_parameters(model)
    x = torch.arange(8.0).reshape(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()

    return record(folder, model, step, optimizer, noise_seed=noise_seed)


def test_every_call_of_every_child_has_its_output(tmp_path: Path) -> None:
    found = recorded(tmp_path / "trace")
    assert found.summary.faults == ()
    outputs = [id_ for id_ in found.trace.by_id() if id_.kind is Kind.OUTPUT and id_.module]
    assert {(id_.module, id_.call) for id_ in outputs} == {*((n, 0) for n in NAMES), ("a", 1)}
    assert all(len(records) == 1 for records in map(found.trace.by_id().get, outputs) if records)


def test_they_are_compared_and_equal(tmp_path: Path) -> None:
    reference, candidate = tmp_path / "reference", tmp_path / "candidate"
    recorded(reference)
    recorded(candidate)
    recorded(tmp_path / "perturbed", noise_seed=1)
    result = ttrace.check(reference, candidate, perturbed=[tmp_path / "perturbed"])
    assert str(result).startswith("EQUIVALENT")
    assert {tensor.id.module for tensor in result.tensors} == {"", *NAMES}


def test_two_children_of_one_path_are_two_modules() -> None:
    inner = Calling(lambda self, x: x, b=nn.Linear(4, 4))
    model = Calling(lambda self, x: x, a=inner)
    setattr(model, "a.b", nn.Linear(4, 4))  # which add_module would refuse
    setattr(model, "", nn.Linear(4, 4))
    names = [path for path, _ in NativeAdapter(model).modules()]
    assert names == ["", "a", "a.b", "a.b%", "%"]
    parameters = NativeAdapter(model).parameters()
    ids = [TensorId(step=0, module=p.module, kind=Kind.PARAM, slot=p.name) for p in parameters]
    assert len({str(id_) for id_ in ids}) == len(ids) == 6
