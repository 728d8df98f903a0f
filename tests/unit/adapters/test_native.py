from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.parallel import DataParallel, DistributedDataParallel

from tests.support.capturing import Calling, hook_count, record
from ttrace.adapters.native import modules
from ttrace.adapters.native.adapter import NativeAdapter
from ttrace.adapters.registry import find_adapter
from ttrace.core.layout import Layout

PATHS = ["", "first", "body", "body.0", "body.1"]


def uncompiled(function: Any) -> Any:
    """In place of the compiler's context."""
    return function


def model() -> Any:
    return Calling(
        lambda self, x: self.body(self.first(x)),
        first=nn.Linear(4, 4),
        body=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)),
    )


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def paths(module: nn.Module) -> list[str]:
    return [path for path, _ in NativeAdapter(module).modules()]


def parameters(module: nn.Module) -> list[str]:
    return [f"{each.module}:{each.name}" for each in NativeAdapter(module).parameters()]


class TestPaths:
    def test_a_plain_model_keeps_its_names(self) -> None:
        assert paths(model()) == PATHS
        assert parameters(model())[:2] == ["first:weight", "first:bias"]

    @pytest.mark.usefixtures("group")
    def test_ddp_is_stripped(self) -> None:
        wrapped = DistributedDataParallel(model())
        assert paths(wrapped) == PATHS
        assert parameters(wrapped) == parameters(model())

    def test_data_parallel_is_stripped(self) -> None:
        assert paths(DataParallel(model())) == PATHS

    def test_a_compiled_module_is_stripped_wherever_it_is(self) -> None:
        whole = model()
        whole.body = OptimizedModule(whole.body, cast(Any, uncompiled))
        assert paths(OptimizedModule(whole, cast(Any, uncompiled))) == PATHS
        assert parameters(OptimizedModule(whole, cast(Any, uncompiled))) == parameters(model())

    def test_a_checkpoint_wrapper_is_stripped(self) -> None:
        whole = model()
        whole.body[0] = checkpoint_wrapper(whole.body[0])
        whole.body = checkpoint_wrapper(whole.body)
        assert paths(whole) == PATHS
        assert parameters(whole) == parameters(model())

    @pytest.mark.usefixtures("group")
    def test_wrappers_around_wrappers_are_stripped(self) -> None:
        inner = OptimizedModule(checkpoint_wrapper(model()), cast(Any, uncompiled))
        assert paths(DistributedDataParallel(inner)) == PATHS

    @pytest.mark.usefixtures("group")
    def test_fully_shard_changes_no_name(self) -> None:
        whole = model()
        fully_shard(whole, mesh=init_device_mesh("cpu", (1,), mesh_dim_names=("dp",)))
        assert paths(whole) == PATHS
        assert parameters(whole) == parameters(model())

    def test_a_users_own_attribute_called_module_is_kept(self) -> None:
        own = Calling(lambda self, x: self.module(x), module=model())
        assert paths(own) == ["", *(f"module.{path}".rstrip(".") for path in PATHS)]

    def test_the_module_of_a_stripped_path_is_the_wrapped_one(self) -> None:
        whole = model()
        linear = whole.body[0]
        whole.body[0] = checkpoint_wrapper(linear)
        assert dict(NativeAdapter(whole).modules())["body.0"] is linear

    def test_a_model_that_changed_since_it_was_walked_is_walked_again(self) -> None:
        whole = model()
        adapter = NativeAdapter(whole)
        assert [path for path, _ in adapter.modules()] == PATHS
        whole.body[0] = nn.Linear(4, 4)
        assert dict(adapter.modules())["body.0"] is whole.body[0]
        whole.first.inside = nn.ReLU()  # of a module that had no children
        assert "first.inside" in dict(adapter.modules())
        del whole.first.inside
        assert [path for path, _ in adapter.modules()] == PATHS

    def test_a_model_is_not_walked_again_while_it_stays_as_it_is(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        adapter = NativeAdapter(model())
        monkeypatch.setattr(modules, "walk", None)
        assert [path for path, _ in adapter.modules()] == PATHS


class TestTied:
    def test_a_tied_parameter_has_its_first_name(self) -> None:
        whole = model()
        whole.body[0].weight = whole.first.weight
        assert "first:weight" in parameters(whole)
        assert "body.0:weight" not in parameters(whole)
        assert len(parameters(whole)) == len(parameters(model())) - 1

    def test_a_shared_module_has_its_first_name(self) -> None:
        shared = nn.Linear(4, 4)
        whole = Calling(lambda self, x: self.b(self.a(x)), a=shared, b=nn.Sequential(shared))
        assert paths(whole) == ["", "a", "b"]
        assert parameters(whole) == ["a:weight", "a:bias"]


class TestWrittenClass:
    @pytest.mark.usefixtures("group")
    def test_the_class_of_fully_shard_is_looked_through(self) -> None:
        whole = model()
        fully_shard(whole, mesh=init_device_mesh("cpu", (1,)))
        assert type(whole) is not Calling
        assert NativeAdapter(whole).written_class(whole) is Calling

    def test_a_plain_module_has_its_own(self) -> None:
        assert NativeAdapter(model()).written_class(nn.Linear(1, 1)) is nn.Linear


class TestTracedWrappers:
    """A wrapped model leaves the same ids as the plain one."""

    @pytest.fixture
    def plain(self, tmp_path: Path) -> set[str]:
        whole = model()
        return record(
            tmp_path / "plain", whole, lambda: whole(torch.ones(2, 4)).sum().backward()
        ).ids

    @pytest.mark.usefixtures("group")
    def test_ddp(self, plain: set[str], tmp_path: Path) -> None:
        whole = DistributedDataParallel(model())
        trace = record(tmp_path / "ddp", whole, lambda: whole(torch.ones(2, 4)).sum().backward())
        assert trace.ids == plain
        assert trace.summary.faults == ()
        assert hook_count(whole) == 0

    @pytest.mark.usefixtures("group")
    def test_fully_shard(self, plain: set[str], tmp_path: Path) -> None:
        whole = model()
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
        for part in (whole.first, whole.body, whole):
            fully_shard(part, mesh=mesh)
        trace = record(tmp_path / "fsdp", whole, lambda: whole(torch.ones(2, 4)).sum().backward())
        assert trace.ids == plain
        assert trace.summary.faults == ()
        weight = trace.record("first:main_grad.weight")
        assert weight.layout == Layout.full((4, 4)).shard(0, 0, 1)
        assert trace.trace.ranks[0].info.axes == {"dp": (0, 1)}

    def test_checkpoint_wrapper(self, plain: set[str], tmp_path: Path) -> None:
        whole = model()
        whole.body = checkpoint_wrapper(whole.body)
        trace = record(tmp_path / "ckpt", whole, lambda: whole(torch.ones(2, 4)).sum().backward())
        assert trace.ids == plain
        assert len(trace.records("body.0:output.0")) == 2


class TestTensors:
    def test_a_plain_tensor_is_itself_without_a_layout(self) -> None:
        x = torch.ones(2, requires_grad=True)
        local, layout = find_adapter(model()).to_local(x)
        assert (local.data_ptr(), local.requires_grad, layout) == (x.data_ptr(), False, None)

    @pytest.mark.usefixtures("group")
    def test_a_dtensor_gives_its_shard_and_layout(self) -> None:
        adapter = find_adapter(model())
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
        x = DTensor.from_local(torch.ones(2, 4), mesh, [Replicate(), Shard(1)])
        local, layout = adapter.to_local(x)
        assert type(local) is torch.Tensor
        assert layout == Layout.full((2, 4)).shard(1, 0, 1)
        again = adapter.wrap_like(local * 2, like=x)
        assert isinstance(again, DTensor)
        assert (again.placements, again.shape) == (x.placements, x.shape)

    def test_a_mean_over_ranks_is_told_as_the_sum_of_its_parts(self) -> None:
        dist.init_process_group("fake", rank=1, world_size=2)
        try:
            mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
            x = DTensor.from_local(torch.full((4,), 6.0), mesh, [Partial("avg")])
            adapter = find_adapter(model())
            local, layout = adapter.to_local(x)
            again = adapter.wrap_like(local, like=x)
        finally:
            dist.destroy_process_group()
        assert layout == Layout.full((4,)).summed_over("tp")
        assert local.tolist() == [3.0] * 4
        assert isinstance(again, DTensor)
        assert again.placements == (Partial("avg"),)
        assert again.to_local().tolist() == [6.0] * 4

    def test_values_kept_in_few_bits_are_told_as_what_they_stand_for(self) -> None:
        class Halves(torch.Tensor):
            def dequantize(self) -> torch.Tensor:
                return self.as_subclass(torch.Tensor) / 2

        kept = torch.tensor([1.0, 3.0]).as_subclass(Halves)
        assert find_adapter(model()).to_local(kept)[0].tolist() == [0.5, 1.5]

    @pytest.mark.usefixtures("group")
    def test_pending_reductions_are_done(self) -> None:
        adapter = find_adapter(model())
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
        partial = DTensor.from_local(torch.ones(2, 4), mesh, [Partial(), Shard(1)])
        done = adapter.reduced(partial)
        assert isinstance(done, DTensor)
        assert done.placements == (Replicate(), Shard(1))
        assert adapter.reduced(done) is done
        plain = torch.ones(2)
        assert adapter.reduced(plain) is plain

    @pytest.mark.usefixtures("group")
    def test_a_local_tensor_remembers_its_layout_only_while_tracked(self) -> None:
        adapter = find_adapter(model())
        original = DTensor.to_local
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
        x = DTensor.from_local(torch.ones(2, 4), mesh, [Shard(1)])
        with adapter.tracking():
            tracked = x.to_local()
        assert DTensor.to_local is original
        assert adapter.to_local(tracked)[1] == Layout.full((2, 4)).shard(1, 0, 1)
        assert adapter.to_local(x.to_local())[1] is None

    def test_one_process_has_the_whole_batch(self) -> None:
        coordinates = find_adapter(model()).coordinates()
        assert (coordinates.rank, coordinates.world_size) == (0, 1)
        assert (coordinates.axes, coordinates.batch) == ({}, (0, 1))
