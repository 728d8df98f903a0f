from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from tests.support.capturing import Recorded, attach, read, record
from ttrace.capture.tracer import finish_steps


def run(model: nn.Module, x: Tensor | None = None) -> Tensor:
    """Forward and backward; the loss."""
    loss = model(torch.ones(2, 4) if x is None else x).square().mean()
    loss.backward()
    return loss


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class TestOneStep:
    @pytest.fixture
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def test_every_kind_of_tensor_is_recorded_with_its_value(
        self, model: Any, tmp_path: Path
    ) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = model[0].weight.detach().clone()
        x = torch.randn(2, 4, requires_grad=True)
        kept: dict[str, Tensor] = {}

        def step() -> None:
            hidden = model[0](x)
            hidden.retain_grad()
            output = model[1](hidden)
            output.retain_grad()
            loss = output.square().mean()
            loss.backward()
            kept.update(hidden=hidden, output=output, loss=loss)
            optimizer.step()

        trace = record(tmp_path, model, step, optimizer)
        expected: dict[str, Tensor | None] = {
            "0:param.weight": before,
            "0:input.0": x,
            "0:output.0": kept["hidden"],
            "1:input.0": kept["hidden"],
            "1:output.0": kept["output"],
            ":loss": kept["loss"],
            "1:grad_output.0": kept["output"].grad,
            "0:grad_output.0": kept["hidden"].grad,
            "0:grad_input.0": x.grad,
            "0:grad.weight": model[0].weight.grad,
            "0:main_grad.weight": model[0].weight.grad,
            "1:main_grad.bias": model[1].bias.grad,
            "0:param_after.weight": model[0].weight,
        }
        for name, value in expected.items():
            assert value is not None
            assert torch.equal(trace.value(name), value.detach()), name
        assert not torch.equal(before, model[0].weight.detach())

    def test_nothing_else_is_recorded(self, model: nn.Module, tmp_path: Path) -> None:
        trace = record(tmp_path, model, lambda: run(model))
        parameters = {f"{m}:{k}.{p}" for m in "01" for p in ("weight", "bias") for k in PARAMETER}
        values = {f"{m}:{kind}.0" for m in ("", "0", "1") for kind in ("input", "output")}
        gradients = {":grad_output.0", "0:grad_output.0", "1:grad_output.0", "1:grad_input.0"}
        assert trace.ids == parameters | values | gradients | {":loss"}

    def test_the_summary_counts_the_gradients(self, model: nn.Module, tmp_path: Path) -> None:
        summary = record(tmp_path, model, lambda: run(model)).summary
        assert (summary.steps, summary.hooks_expected, summary.hooks_fired) == (1, 2, 2)
        assert [summary.unfired, summary.never_called, summary.faults] == [()] * 3

    def test_without_an_optimizer_gradients_are_taken_at_the_end(
        self, model: Any, tmp_path: Path
    ) -> None:
        trace = record(tmp_path, model, lambda: run(model))
        assert torch.equal(trace.value("0:main_grad.weight"), model[0].weight.grad)
        assert trace.summary.notes == ("step 0: no parameter was changed inside tracer.step()",)

    def test_a_frozen_parameter_has_no_gradient(self, model: nn.Module, tmp_path: Path) -> None:
        model[0].requires_grad_(False)  # type: ignore[index]
        trace = record(tmp_path, model, lambda: run(model))
        assert "0:param.weight" in trace.ids
        assert "0:main_grad.weight" not in trace.ids
        assert "1:main_grad.weight" in trace.ids

    def test_the_manifest_describes_the_modules(self, model: nn.Module, tmp_path: Path) -> None:
        info = record(tmp_path, model, lambda: run(model)).trace.ranks[0].info
        modules = [(module.path, module.class_name) for module in info.modules]
        assert modules == [("", "Sequential"), ("0", "Linear"), ("1", "Linear")]
        assert all(".py:" in module.source for module in info.modules)
        assert (info.rank, info.world_size, info.batch, info.noise_seed) == (0, 1, (0, 1), None)

    def test_several_steps_are_recorded_apart(self, model: Any, tmp_path: Path) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            run(model)
            optimizer.step()

        trace = record(tmp_path, model, step, optimizer, steps=3)
        assert trace.trace.steps == (0, 1, 2)
        assert trace.summary.steps == 3
        for before, after in ((0, 1), (1, 2)):
            updated = trace.value(f"step{before}/0:param_after.weight")
            assert torch.equal(updated, trace.value(f"step{after}/0:param.weight"))

    def test_forward_without_autograd_has_values_only(
        self, model: nn.Module, tmp_path: Path
    ) -> None:
        def step() -> None:
            with torch.no_grad():
                model(torch.ones(2, 4))

        trace = record(tmp_path, model, step)
        assert "1~no_grad:output.0" in trace.ids
        assert not any(":grad" in name or "loss" in name for name in trace.ids)
        assert trace.summary.hooks_expected == 0


PARAMETER = ("param", "grad", "main_grad", "param_after")


class TestLoss:
    @pytest.fixture
    def model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def test_a_named_loss_wins_over_the_one_found(self, model: nn.Module, tmp_path: Path) -> None:
        tracer = attach(tmp_path, model)
        with tracer.step():
            loss = model(torch.ones(2, 4)).mean()
            assert tracer.loss(loss) is loss
            (1024 * loss).backward()
        assert torch.equal(read(tmp_path).value(":loss"), loss.detach())

    def test_without_a_name_the_scaled_one_is_found(self, model: nn.Module, tmp_path: Path) -> None:
        trace = record(tmp_path, model, lambda: (1024 * model(torch.ones(2, 4)).mean()).backward())
        assert trace.value(":loss") == 1024 * trace.value(":output.0").mean()

    def test_a_loss_with_dims_is_a_number_all_the_same(
        self, model: nn.Module, tmp_path: Path
    ) -> None:
        trace = record(tmp_path, model, lambda: model(torch.ones(1, 4)).backward())
        assert trace.value(":output.0").shape == (1, 1)
        assert torch.equal(trace.value(":loss"), trace.value(":output.0").squeeze())

    def test_a_loss_named_outside_of_a_step_is_not_recorded(
        self, model: nn.Module, tmp_path: Path
    ) -> None:
        tracer = attach(tmp_path, model)
        tracer.loss(torch.ones(()))
        with tracer.step():
            model(torch.ones(2, 4))
        tracer.loss(torch.ones(()))
        assert ":loss" not in read(tmp_path).ids

    def test_explicit_gradients_start_from_no_loss(self, model: nn.Module, tmp_path: Path) -> None:
        trace = record(tmp_path, model, lambda: model(torch.ones(1, 4)).backward(torch.ones(1, 1)))
        assert ":loss" not in trace.ids
        assert ":main_grad.weight" in trace.ids

    @pytest.mark.parametrize(
        ("start", "found"),
        [
            (lambda loss: torch.autograd.backward([loss]), True),
            (lambda loss: torch.autograd.backward(cast(Any, iter([loss]))), True),
            (lambda loss: torch.autograd.backward((loss,), grad_tensors=[None]), True),
            (lambda loss: torch.autograd.backward(get_gradient_edge(loss)), False),
            (lambda loss: torch.autograd.backward([get_gradient_edge(loss)], [None]), False),
        ],
        ids=["list", "iterator", "pipeline", "edge", "edges"],
    )
    def test_every_form_of_backward_still_works(
        self, model: Any, tmp_path: Path, start: Callable[[Tensor], None], found: bool
    ) -> None:
        try:
            start(model(torch.ones(2, 4)).mean())
        except (RuntimeError, TypeError) as error:
            pytest.skip(f"this torch refuses it: {error}")
        expected = model.weight.grad.clone()
        model.zero_grad()
        trace = record(tmp_path, model, lambda: start(model(torch.ones(2, 4)).mean()))
        assert torch.equal(trace.value(":main_grad.weight"), expected)
        assert (":loss" in trace.ids) == found


class TestMicrobatches:
    model: nn.Module

    @pytest.fixture(autouse=True)
    def made(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def losses(self, trace: Recorded) -> Iterator[tuple[Tensor, Tensor]]:
        for found in trace.records(":loss"):
            output = trace.value(":output.0", microbatch=found.microbatch)
            yield trace.value(":loss", microbatch=found.microbatch), output.square().mean()

    def test_accumulation_numbers_them(self, tmp_path: Path) -> None:
        trace = record(
            tmp_path, self.model, lambda: [run(self.model, x) for x in torch.ones(3, 2, 4)]
        )
        for name in (":input.0", "0:output.0", ":loss", "1:grad_input.0"):
            assert [found.microbatch for found in trace.records(name)] == [0, 1, 2], name
        assert len(trace.records("0:main_grad.weight")) == 1

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_a_loss_belongs_to_its_forward_also_when_backward_comes_later(
        self, order: tuple[int, int], tmp_path: Path
    ) -> None:
        def step() -> None:
            losses = [self.model(x).square().mean() for x in torch.randn(2, 2, 4)]
            for microbatch in order:
                losses[microbatch].backward()

        trace = record(tmp_path, self.model, step)
        assert [found.microbatch for found in trace.records(":loss")] == list(order)
        for loss, expected in self.losses(trace):
            assert torch.equal(loss, expected)

    def test_a_loss_comes_before_its_gradients_in_the_order_of_the_step(
        self, tmp_path: Path
    ) -> None:
        trace = record(tmp_path, self.model, lambda: run(self.model))
        names = ("1:output.0", ":loss", "1:grad_output.0")
        sequence = [trace.record(name).sequence for name in names]
        assert sequence == sorted(set(sequence))


class TestOptimizers:
    @pytest.fixture
    def model(self) -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    @pytest.fixture
    def optimizers(self, model: Any) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]

    def test_parameters_of_all_of_them_are_recorded(
        self, model: Any, optimizers: list[Any], tmp_path: Path
    ) -> None:
        step = lambda: (run(model), [each.step() for each in optimizers])  # noqa: E731
        trace = record(tmp_path, model, step, optimizers)
        for index in (0, 1):
            after = trace.value(f"{index}:param_after.weight")
            assert torch.equal(after, model[index].weight.detach())
            assert not torch.equal(after, trace.value(f"{index}:param.weight"))
        assert trace.summary.notes == ()

    def test_one_that_made_no_step_is_noted(
        self, model: Any, optimizers: list[Any], tmp_path: Path
    ) -> None:
        trace = record(tmp_path, model, lambda: (run(model), optimizers[0].step()), optimizers)
        assert torch.equal(trace.value("0:param_after.weight"), model[0].weight)
        assert torch.equal(trace.value("1:param_after.weight"), trace.value("1:param.weight"))
        assert "1 of 2 optimizers made no step" in trace.summary.notes[0]

    def test_none_that_made_a_step_leaves_no_update(
        self, model: Any, optimizers: list[Any], tmp_path: Path
    ) -> None:
        tracer = attach(tmp_path, model, optimizers)
        with tracer.step():
            run(model)
        finish_steps()
        trace = read(tmp_path)
        assert not any(":param_after" in name for name in trace.ids)
        assert "no updated parameters to compare" in trace.summary.notes[0]

    def test_one_that_steps_after_the_step_was_left_belongs_to_it(
        self, model: Any, optimizers: list[Any], tmp_path: Path
    ) -> None:
        tracer = attach(tmp_path, model, optimizers)
        with tracer.step():
            run(model)
        model(torch.ones(2, 4))  # nobody records this
        for optimizer in optimizers:
            optimizer.step()
        trace = read(tmp_path)
        assert trace.summary.notes == ()
        assert torch.equal(trace.value("1:param_after.weight"), model[1].weight)
        assert {record.microbatch for record in trace.records("0:output.0")} == {0}

    def test_a_step_around_each_microbatch_is_one_step(
        self, model: Any, optimizers: list[Any], tmp_path: Path
    ) -> None:
        tracer = attach(tmp_path, model, optimizers, steps=2)
        for number in range(4):
            with tracer.step():
                run(model)
                if number % 2:
                    for optimizer in optimizers:
                        optimizer.step()
                        optimizer.zero_grad()
        trace = read(tmp_path)
        assert trace.summary.steps == 2
        assert trace.trace.steps == (0, 1)
        assert {record.microbatch for record in trace.records("0:output.0")} == {0, 1}

    def test_gradients_that_were_dropped_end_the_step(
        self, model: Any, optimizers: list[Any], tmp_path: Path
    ) -> None:
        """A loss scaler leaves an update out where gradients are infinite."""
        tracer = attach(tmp_path, model, optimizers, steps=2)
        for _ in range(2):
            model.zero_grad()
            with tracer.step():
                run(model)
        finish_steps()
        trace = read(tmp_path)
        assert trace.trace.steps == (0, 1)
        assert {record.microbatch for record in trace.records("0:output.0")} == {0}

    @pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}])
    def test_updated_parameters_are_read_again(
        self, model: Any, options: dict[str, Any], tmp_path: Path
    ) -> None:
        """A fused optimizer changes parameters without telling autograd."""
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
        trace = record(tmp_path, model, lambda: (run(model), optimizer.step()), optimizer)
        assert torch.equal(trace.value("0:param_after.weight"), model[0].weight.detach())
        before, after = trace.record("0:param.weight"), trace.record("0:param_after.weight")
        assert before.location != after.location
