"""From the gradients to the next step: clipping, the state of the optimizer, buffers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad, clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_

from tests.support.capturing import Recorded, attach, record
from ttrace.adapters.base import Adapter
from ttrace.adapters.registry import registered
from ttrace.capture.tracer import OffTracer
from ttrace.capture.update import Buffers

BY_NORM: dict[str, Callable[[Any], object]] = {
    "imported name": lambda parameters: clip_grad_norm_(parameters, 0.01),
    "attribute": lambda parameters: nn.utils.clip_grad_norm_(parameters, max_norm=0.01),
    "generator": lambda parameters: clip_grad_norm_((p for p in parameters), 0.01),
    "own norm": lambda parameters: clip_grads_with_norm_(
        parameters, 0.01, total_norm=nn.utils.get_total_norm([p.grad for p in parameters])
    ),
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


def step_with(
    folder: Path,
    model: nn.Module,
    clip: Callable[[list[nn.Parameter]], object],
    optimizer: torch.optim.Optimizer | None = None,
) -> Recorded:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.ones(2, 4)).square().mean().backward()
        clip(list(model.parameters()))
        optimizer.step()

    return record(folder, model, step, optimizer)


class TestClipping:
    @pytest.mark.parametrize("way", BY_NORM)
    def test_by_norm_is_seen_however_it_is_called(
        self, way: str, model: Any, tmp_path: Path
    ) -> None:
        trace = step_with(tmp_path, model, BY_NORM[way])
        norm = trace.value(":grad_norm")
        before = [trace.value(f"{m}:main_grad.{p}") for m in "01" for p in ("weight", "bias")]
        assert norm == pytest.approx(float(torch.cat([g.flatten() for g in before]).norm()))
        clipped = trace.value("0:clipped_grad.weight")
        assert torch.equal(clipped, model[0].weight.grad)
        assert torch.allclose(clipped, trace.value("0:main_grad.weight") * 0.01 / norm, rtol=1e-4)
        assert trace.summary.faults == ()

    def test_by_value_has_no_norm(self, model: Any, tmp_path: Path) -> None:
        trace = step_with(tmp_path, model, lambda parameters: clip_grad_value_(parameters, 1e-3))
        assert ":grad_norm" not in trace.ids
        assert trace.value("0:clipped_grad.weight").abs().max() <= 1e-3
        assert trace.value("0:main_grad.weight").abs().max() > 1e-3

    def test_that_did_not_happen_leaves_nothing(self, model: nn.Module, tmp_path: Path) -> None:
        trace = step_with(tmp_path, model, lambda _: None)
        assert not any("clipped_grad" in name or "grad_norm" in name for name in trace.ids)

    def test_that_changed_nothing_is_recorded_too(self, model: nn.Module, tmp_path: Path) -> None:
        trace = step_with(tmp_path, model, lambda parameters: clip_grad_norm_(parameters, 1e9))
        unclipped = trace.value("0:main_grad.weight")
        assert torch.equal(trace.value("0:clipped_grad.weight"), unclipped)

    def test_by_a_second_norm_is_noted(self, model: nn.Module, tmp_path: Path) -> None:
        twice = lambda parameters: [clip_grad_norm_(parameters, 0.01) for _ in range(2)]  # noqa: E731
        trace = step_with(tmp_path, model, twice)
        assert len(trace.records(":grad_norm")) == 1
        assert trace.value(":grad_norm") > 0.02
        assert "clipped by several norms" in trace.summary.notes[0]

    def test_in_groups_by_one_norm_is_one_clipping(self, model: nn.Module, tmp_path: Path) -> None:
        def groups(parameters: list[nn.Parameter]) -> None:
            norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
            for parameter in parameters:
                clip_grads_with_norm_(parameter, 0.01, norm)

        trace = step_with(tmp_path, model, groups)
        assert trace.summary.notes == ()
        assert len(trace.records(":grad_norm")) == 1
        ratio = trace.value("1:main_grad.weight") / trace.value("1:clipped_grad.weight")
        assert ratio.mean() == pytest.approx(float(trace.value(":grad_norm")) / 0.01, rel=1e-3)

    def test_outside_of_a_step_is_torchs_own(self, model: nn.Module, tmp_path: Path) -> None:
        def inside() -> list[object]:
            functions: list[Any] = [clip_grad._clip_grads_with_norm_, clip_grad_value_]
            return [function.__closure__[0].cell_contents for function in functions]

        before = inside()
        tracer = attach(tmp_path, model, steps=2)
        with tracer.step():
            assert inside() != before
        assert inside() == before
        with pytest.raises(KeyError), tracer.step():
            raise KeyError
        assert inside() == before

    @pytest.mark.parametrize("way", BY_NORM)
    def test_changes_no_number(self, way: str, tmp_path: Path) -> None:
        def train(start: Callable[..., Any]) -> list[Tensor]:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            tracer = start(model, optimizer)
            numbers = []
            for x in torch.randn(2, 3, 4):
                with tracer.step():
                    model(x).square().mean().backward()
                    returned = BY_NORM[way](list(model.parameters()))
                    numbers += [returned] if isinstance(returned, Tensor) else []
                    optimizer.step()
                numbers += [p.detach().clone() for p in model.parameters()]
            return numbers

        untraced = train(lambda *_: OffTracer())
        traced = train(lambda *watched: attach(tmp_path, *watched, steps=2))
        assert all(map(torch.equal, traced, untraced))


class TestOptimizerState:
    def test_is_recorded_after_the_step(self, model: Any, tmp_path: Path) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, amsgrad=True)
        trace = step_with(tmp_path, model, lambda _: None, optimizer)
        state = optimizer.state[model[0].weight]
        assert set(state) == {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
        for key, value in state.items():
            assert torch.equal(trace.value(f"0:optimizer.weight.{key}"), value)
        assert {f"{m}:optimizer.{p}.step" for m in "01" for p in ("weight", "bias")} < trace.ids

    def test_python_numbers_in_it_are_not(self, model: Any, tmp_path: Path) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer.state[model[0].weight]["seen"] = 3
        trace = step_with(tmp_path, model, lambda _: None, optimizer)
        found = {name for name in trace.ids if name.startswith("0:optimizer.weight")}
        assert found == {"0:optimizer.weight.momentum_buffer"}

    def test_an_optimizer_without_one_leaves_nothing(
        self, model: nn.Module, tmp_path: Path
    ) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trace = step_with(tmp_path, model, lambda _: None, optimizer)
        assert not any(":optimizer" in name for name in trace.ids)
        assert len(optimizer.state) == 0


class TestBuffers:
    def run(self, folder: Path, model: nn.Module) -> Recorded:
        return record(folder, model, lambda: model(torch.randn(4, 3)).square().mean().backward())

    def test_that_changed_are_recorded(self, tmp_path: Path) -> None:
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        trace = self.run(tmp_path, model)
        for name, value in model[1].named_buffers():
            assert torch.equal(trace.value(f"1:buffer.{name}"), value)
        assert trace.value("1:buffer.num_batches_tracked") == 1

    def test_that_did_not_are_not(self, tmp_path: Path) -> None:
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
        assert not any(":buffer" in name for name in self.run(tmp_path, model).ids)

    def test_that_a_step_changed_are_there_in_later_ones(self) -> None:
        """A maximum over steps changes in some, which may depend on rounding."""
        layer = nn.BatchNorm1d(3)
        buffers = Buffers(Adapter(layer))
        counts = []
        for changed in (0.0, 1.0, 0.0):
            buffers.begin()
            layer.get_buffer("running_mean").add_(changed)
            counts.append([name for _, name, _ in buffers.changed()])
        assert counts == [[], ["running_mean"], ["running_mean"]]


class TestClosures:
    """An optimizer that is given a closure makes the gradients inside of its own step."""

    @pytest.mark.parametrize("as_keyword", [False, True])
    def test_gradients_are_those_that_the_closure_made(
        self, model: Any, *, as_keyword: bool, tmp_path: Path
    ) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen: list[Tensor] = []

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            seen.append(model[0].weight.grad.clone())
            return loss

        def step() -> None:
            model[0].weight.grad = torch.ones(4, 4)  # stale
            optimizer.step(closure=closure) if as_keyword else optimizer.step(closure)

        trace = record(tmp_path, model, step, optimizer)
        assert len(seen) == 1
        assert torch.equal(trace.value("0:main_grad.weight"), seen[0])
        assert trace.summary.faults == trace.summary.notes == ()

    def test_the_first_of_several_evaluations_is_recorded(self, model: Any, tmp_path: Path) -> None:
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
        losses: list[Tensor] = []

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            losses.append(loss.detach())
            return loss

        trace = record(tmp_path, model, lambda: optimizer.step(closure), optimizer)
        assert len(losses) > 1
        assert torch.equal(trace.value(":loss"), losses[0])
        assert {each.microbatch for each in trace.trace.ranks[0].records} == {0}
        assert torch.equal(trace.value("0:param_after.weight"), model[0].weight)
        assert trace.summary.faults == ()
        (note,) = trace.summary.notes
        assert "the first evaluation is compared" in note


class InTurns(Adapter):
    """Gives its optimizer one layer after the other, as DeepSpeed does, clipped just before."""

    name = "in turns"
    turn: nn.Module

    def is_updated_later(self, parameter: nn.Parameter) -> bool:
        return all(parameter is not own for own in self.turn.parameters())


class TestGroupsInTurns:
    def test_each_parameter_has_the_gradients_of_its_own_turn(
        self, model: Any, tmp_path: Path
    ) -> None:
        adapter = InTurns(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            model(torch.ones(2, 4)).square().mean().backward()
            for adapter.turn in model:
                clip_grad_norm_(adapter.turn.parameters(), 0.01)
                optimizer.step()

        framework = SimpleNamespace(matches=lambda _: True, make=lambda _: adapter)
        with registered("turns", framework):
            trace = record(tmp_path, model, step, optimizer)
        for layer in "01":
            clipped = trace.value(f"{layer}:clipped_grad.weight")
            assert torch.equal(clipped, model[int(layer)].weight.grad)
            assert clipped.norm() < trace.value(f"{layer}:main_grad.weight").norm()


class TestSeveralOptimizers:
    def test_each_parameter_has_the_gradient_of_its_own_step(
        self, model: Any, tmp_path: Path
    ) -> None:
        """As a discriminator and a generator are trained in turn."""
        first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in model)

        def step() -> None:
            model(torch.ones(2, 4)).square().mean().backward()
            first.step()
            model.zero_grad()
            model(torch.full((2, 4), 3.0)).square().mean().backward()
            second.step()

        trace = record(tmp_path, model, step, [first, second])
        assert torch.equal(trace.value("1:main_grad.weight"), model[1].weight.grad)
        assert not torch.equal(trace.value("0:main_grad.weight"), model[0].weight.grad)

    def test_steps_inside_backward_leave_their_gradients(self, model: Any, tmp_path: Path) -> None:
        optimizers = {p: torch.optim.Adam([p], lr=0.1) for p in model.parameters()}
        seen: dict[nn.Parameter, Tensor] = {}

        def update(parameter: nn.Parameter) -> None:
            assert parameter.grad is not None
            seen[parameter] = parameter.grad.clone()
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        step = lambda: model(torch.ones(2, 4)).square().mean().backward()  # noqa: E731
        trace = record(tmp_path, model, step, list(optimizers.values()))
        for number in "01":
            gradient = seen[model[int(number)].weight]
            assert torch.equal(trace.value(f"{number}:main_grad.weight"), gradient)
            assert f"{number}:optimizer.weight.exp_avg" in trace.ids
        assert trace.summary.notes == ()
