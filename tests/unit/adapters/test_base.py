"""What an adapter that overrides nothing answers."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ttrace.adapters.base import Adapter, BoundarySpec
from ttrace.core.ids import Kind
from ttrace.errors import UsageError


class Plain(Adapter):
    name = "plain"


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1)))


def test_modules_have_torchs_names_root_first() -> None:
    assert [path for path, _ in Plain(model()).modules()] == ["", "0", "1", "1.0"]


def test_several_roots_share_what_they_share() -> None:
    first, second = model(), model()
    second[0] = first[0]
    adapter = Plain([first, second])
    assert [path for path, _ in adapter.modules()] == ["", "0", "1", "1.0", "", "1", "1.0"]


def test_a_tied_parameter_has_its_first_name() -> None:
    tied = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    tied[1].weight = tied[0].weight
    (found,) = Plain(tied).parameters()
    assert (found.module, found.name) == ("0", "weight")


def test_a_process_alone_has_the_whole_batch() -> None:
    coordinates = Plain(model()).coordinates()
    assert (coordinates.rank, coordinates.world_size) == (0, 1)
    assert (coordinates.axes, coordinates.batch) == ({}, (0, 1))


def test_a_process_group_says_the_rank(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert Plain(model()).coordinates().rank == 0
    finally:
        dist.destroy_process_group()


def test_parts_are_the_parameter_its_gradient_and_its_state() -> None:
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    adapter = Plain(net)
    assert list(adapter.optimizers([optimizer])) == [optimizer]
    parameter = next(adapter.parameters())
    assert list(adapter.parts(Kind.MAIN_GRAD, parameter)) == []
    assert list(adapter.parts(Kind.OPTIMIZER, parameter)) == []
    assert parameter.tensor not in optimizer.state  # asking made none
    net(torch.ones(1, 2)).sum().backward()
    for kind in (Kind.REDUCED_GRAD, Kind.MAIN_GRAD, Kind.CLIPPED_GRAD):
        (part,) = adapter.parts(kind, parameter)
        assert part.tensor is parameter.tensor.grad
    optimizer.step()
    (part,) = adapter.parts(Kind.PARAM, parameter)
    assert (part.slot, part.tensor, part.layout) == ("weight", parameter.tensor, None)
    slots = [part.slot for part in adapter.parts(Kind.OPTIMIZER, parameter)]
    assert slots == ["weight.step", "weight.exp_avg", "weight.exp_avg_sq"]


def test_a_boundary_is_its_slot_alone() -> None:
    net = model()
    boundary = Plain(net).boundary(net, Kind.INPUT, "0", torch.ones(1))
    assert boundary == BoundarySpec(slot="0")


def test_something_else_than_modules_is_refused() -> None:
    for wrong in ([], [3], "model"):
        with pytest.raises(UsageError, match=r"needs torch\.nn\.Modules"):
            Plain(wrong)  # type: ignore[arg-type]
