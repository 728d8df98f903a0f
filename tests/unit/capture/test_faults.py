from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.capturing import Calling, Recorded, attach, hook_count, read, record
from ttrace.capture import outbox
from ttrace.capture.recorder import Recorder
from ttrace.trace.writer import TraceWriter


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class Small:
    """A model, its optimizer and its training step."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()

    def record(self, folder: Path) -> Recorded:
        return record(folder, self.model, self.step, self.optimizer)

    def weights(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


@pytest.fixture
def small() -> Small:
    return Small()


def untraced_weights() -> list[Tensor]:
    torch.manual_seed(0)
    twin = Small()
    twin.step()
    return twin.weights()


class TestFaults:
    @pytest.mark.parametrize("method", ["value", "mention"])
    def test_a_fault_in_a_hook_is_recorded_and_not_raised(
        self, method: str, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: Any, **__: Any) -> None:
            raise ZeroDivisionError("planted")

        monkeypatch.setattr(Recorder, method, broken)
        summary = small.record(tmp_path).summary
        assert "ZeroDivisionError: planted" in summary.faults[0]
        assert all(map(torch.equal, small.weights(), untraced_weights()))

    def test_a_run_without_a_fault_says_so(self, small: Small, tmp_path: Path) -> None:
        assert small.record(tmp_path).summary.faults == ()

    def test_a_fault_names_the_tensor_and_the_rest_is_recorded(
        self, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = Recorder.value

        def broken(self: Recorder, id: Any, tensor: Tensor, **more: Any) -> Any:  # noqa: A002
            if str(id) == "step0/0:grad_output.0":
                raise ZeroDivisionError("planted")
            return original(self, id, tensor, **more)

        monkeypatch.setattr(Recorder, "value", broken)
        trace = small.record(tmp_path)
        assert trace.summary.faults == ("step0/0:grad_output.0: ZeroDivisionError: planted",)
        assert "0:main_grad.weight" in trace.ids

    def test_many_faults_are_counted(
        self, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: Any, **__: Any) -> None:
            raise ZeroDivisionError("planted")

        monkeypatch.setattr(Recorder, "value", broken)
        tracer = attach(tmp_path, small.model, small.optimizer, steps=2)
        for _ in range(2):
            with tracer.step():
                small.step()
        *kept, rest = read(tmp_path).summary.faults
        assert len(kept) == 20
        assert rest.startswith("and ")

    def test_gradients_of_a_second_backward_stand_by_themselves(
        self, small: Small, tmp_path: Path
    ) -> None:
        def step() -> None:
            loss = small.model(torch.ones(2, 4)).sum()
            loss.backward(retain_graph=True)
            (2 * loss).backward()

        trace = record(tmp_path, small.model, step)
        assert trace.summary.faults == ()
        first, second = trace.value("0:grad_output.0"), trace.value("0:grad_output@1.0")
        assert torch.equal(second, 2 * first)
        assert trace.summary.hooks_expected == trace.summary.hooks_fired


@pytest.mark.parametrize("handed_bytes", [0, 1 << 30], ids=["by threads", "in hooks"])
class TestDiskFull:
    @pytest.fixture(autouse=True)
    def written(self, handed_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outbox, "_HANDED_BYTES", handed_bytes)

    @pytest.fixture
    def full(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = TraceWriter.reserve
        written = iter(range(6))

        def reserve(self: TraceWriter, *args: Any) -> Any:
            if next(written, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(self, *args)

        monkeypatch.setattr(TraceWriter, "reserve", reserve)

    @pytest.mark.usefixtures("full")
    def test_training_goes_on_and_the_trace_tells(self, small: Small, tmp_path: Path) -> None:
        trace = small.record(tmp_path)
        assert all(map(torch.equal, small.weights(), untraced_weights()))
        (fault,) = trace.summary.faults
        assert "recording stops here" in fault
        assert "No space left on device" in fault
        assert stored(trace) == 6

    @pytest.mark.usefixtures("full")
    def test_a_trace_that_cannot_even_be_closed_has_no_end(
        self, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def close(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(TraceWriter, "close", close)
        trace = small.record(tmp_path)
        assert all(map(torch.equal, small.weights(), untraced_weights()))
        assert trace.trace.ranks[0].summary is None

    def test_with_space_the_trace_is_whole(self, small: Small, tmp_path: Path) -> None:
        trace = small.record(tmp_path)
        assert trace.summary.faults == ()
        assert stored(trace) > 6


def stored(trace: Recorded) -> int:
    return sum(found.same_as is None for found in trace.trace.ranks[0].records)


class TestEnd:
    def test_hooks_are_gone_after_the_last_recorded_step(
        self, small: Small, tmp_path: Path
    ) -> None:
        tracer = attach(tmp_path, small.model, small.optimizer)
        with tracer.step():
            small.step()
            assert hook_count(small.model, small.optimizer) > 0
        assert hook_count(small.model, small.optimizer) == 0
        whole = read(tmp_path)
        with tracer.step():
            small.step()
        assert read(tmp_path).trace == whole.trace
        assert (whole.trace.steps, whole.summary.steps) == ((0,), 1)

    def test_what_happens_between_steps_is_not_recorded(self, small: Small, tmp_path: Path) -> None:
        tracer = attach(tmp_path, small.model, small.optimizer, steps=2)
        with tracer.step():
            small.step()
        small.step()
        with tracer.step():
            small.step()
        trace = read(tmp_path)
        assert len(trace.records("0:output.0")) == len(trace.records("step1/0:output.0")) == 1
        assert trace.trace.steps == (0, 1)

    def test_a_trace_is_open_until_the_last_step_is_done(
        self, small: Small, tmp_path: Path
    ) -> None:
        tracer = attach(tmp_path, small.model, small.optimizer, steps=2)
        with tracer.step():
            small.step()
        assert read(tmp_path).trace.ranks[0].summary is None
        with tracer.step():
            small.step()
        assert read(tmp_path).summary.steps == 2

    def test_a_step_that_raises_leaves_no_end_and_no_hook(
        self, small: Small, tmp_path: Path
    ) -> None:
        original = torch.autograd.backward
        tracer = attach(tmp_path, small.model, small.optimizer)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), tracer.step():
            small.model(small.model[0](torch.ones(2, 4))[:, :3])
        assert hook_count(small.model, small.optimizer) == 0
        assert torch.autograd.backward is original
        left = read(tmp_path)
        assert left.trace.ranks[0].summary is None
        assert "0:output.0" in left.ids
        with tracer.step():
            small.step()
            tracer.loss(torch.ones(()))
        assert read(tmp_path).trace == left.trace

    def test_a_step_inside_a_step_is_part_of_it(self, small: Small, tmp_path: Path) -> None:
        tracer = attach(tmp_path, small.model, small.optimizer)
        with tracer.step(), tracer.step():
            small.step()
        assert read(tmp_path).summary.steps == 1


@dataclass
class Bag:
    x: Tensor
    lost: Tensor


class TestCallStack:
    """A child that fails must not make its parent's tensors look like somebody else's."""

    def check(self, trace: Recorded, model: Calling, x: Tensor) -> None:
        assert torch.equal(trace.value("good:output.0"), model.good(x).detach())
        assert torch.equal(trace.value(":output.0"), model.good(x).detach())
        assert len(trace.records("good:output.0")) == 1
        assert len(trace.records("good:input.0")) == 1

    def test_after_a_forward_that_raised_and_was_caught(self, tmp_path: Path) -> None:
        def fail(self: Calling, x: Tensor) -> Tensor:
            raise ValueError(f"no {self.inner(x).shape}")

        def forward(self: Calling, x: Tensor) -> Tensor:
            with pytest.raises(ValueError, match="no torch"):
                self.bad(x)
            return self.good(x)

        bad = Calling(fail, inner=nn.Linear(4, 4))
        model = Calling(forward, bad=bad, good=nn.Linear(4, 1))
        x = torch.randn(2, 4)
        trace = record(tmp_path, model, lambda: model(x).sum().backward())
        self.check(trace, model, x)
        assert "bad.inner:output.0" in trace.ids
        assert "bad:input.0" in trace.ids
        assert "bad:output.0" not in trace.ids
        assert trace.summary.faults == ()

    def test_after_inputs_that_could_not_be_walked(self, tmp_path: Path) -> None:
        def forward(self: Calling, x: Tensor) -> Tensor:
            bag = Bag(x, x)
            del bag.lost
            return self.good(self.odd(bag))

        model = Calling(forward, odd=Calling(lambda _, bag: bag.x), good=nn.Linear(4, 1))
        x = torch.randn(2, 4)
        trace = record(tmp_path, model, lambda: model(x).sum().backward())
        self.check(trace, model, x)
        assert torch.equal(trace.value("odd:output.0"), x)
        assert len(trace.summary.faults) == 1

    def test_after_an_input_that_has_no_storage(self, tmp_path: Path) -> None:
        def forward(self: Calling, x: Tensor) -> Tensor:
            return self.good(self.odd(x.to_sparse()))

        model = Calling(forward, odd=Calling(lambda _, x: x.to_dense()), good=nn.Linear(4, 1))
        x = torch.randn(2, 4)
        trace = record(tmp_path, model, lambda: model(x).sum().backward())
        self.check(trace, model, x)
        assert torch.equal(trace.value("odd:output.0"), x)
        assert trace.summary.faults[0].startswith("odd: ")
