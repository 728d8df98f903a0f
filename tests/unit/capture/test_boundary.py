"""Watching leaves a run as it is and sees sums over uses; tapping separates every use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from tests.support.capturing import Calling, Recorded, read
from ttrace.adapters.registry import find_adapter
from ttrace.capture.boundary import Boundary, Tapping, Watching
from ttrace.capture.context import StepContext
from ttrace.capture.hooks import ModuleHooks
from ttrace.capture.noise import Noise
from ttrace.capture.overwrite import Overwriter
from ttrace.capture.recorder import Recorder
from ttrace.core.ids import TensorId
from ttrace.core.record import RankInfo, Summary
from ttrace.trace.writer import TraceWriter

Make = Callable[[StepContext], Boundary]


class Fives:
    """An overwriter that has fives for these ids and nothing for others."""

    def __init__(self, *names: str) -> None:
        self._ids = {TensorId.parse(f"step0/{name}") for name in names}

    def value(self, id_: TensorId, _: int, like: torch.Tensor, *__: Any) -> torch.Tensor | None:
        return torch.full_like(like, 5.0) if id_ in self._ids else None


def fives(*names: str) -> Make:
    return lambda context: Tapping(context, cast("Overwriter", Fives(*names)))


@contextmanager
def hooked(folder: Path, model: nn.Module, make: Make) -> Iterator[StepContext]:
    """One step of a model with these boundaries."""
    adapter = find_adapter(model)
    recorder = Recorder(adapter, TraceWriter(folder, RankInfo(rank=0, world_size=1)), 0)
    context = StepContext(adapter, recorder)
    boundary = make(context)
    ModuleHooks(context, boundary)
    context.begin(0)
    yield context
    context.end()
    boundary.end()
    recorder.guard.handles.remove()
    arrivals = context.arrivals
    recorder.close(
        Summary(
            steps=1,
            hooks_expected=arrivals.expected,
            hooks_fired=arrivals.fired,
            unfired=tuple(arrivals.unfired),
        )
    )


def run(folder: Path, model: nn.Module, make: Make, x: torch.Tensor) -> Recorded:
    with hooked(folder, model, make):
        model(x).square().sum().backward()
    return read(folder)


def keep(met: list[torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    met.append(tensor)
    return tensor


def fork() -> nn.Module:
    """One tensor that two modules use."""
    torch.manual_seed(0)

    def forward(model: Any, x: torch.Tensor) -> torch.Tensor:
        h = model.stem(x)
        return cast("torch.Tensor", model.left(h) + model.right(h))

    layers = {name: nn.Linear(4, 4) for name in ("stem", "left", "right")}
    return Calling(forward, **layers)


X = torch.linspace(-1, 1, 8).reshape(2, 4)


def test_watching_records_the_gradient_over_all_uses_once(tmp_path: Path) -> None:
    trace = run(tmp_path, fork(), Watching, X)
    of_stem = trace.record("stem:grad_output.0")
    for user in ("left", "right"):
        assert trace.record(f"{user}:grad_input.0").same_as == of_stem.id
    assert not trace.summary.faults


def test_tapping_records_the_gradient_of_every_use_by_itself(tmp_path: Path) -> None:
    trace = run(tmp_path / "tap", fork(), Tapping, X)
    left, right = (trace.value(f"{user}:grad_input.0") for user in ("left", "right"))
    assert not left.equal(right)
    torch.testing.assert_close(left + right, trace.value("stem:grad_output.0"))
    watched = run(tmp_path / "watch", fork(), Watching, X)
    torch.testing.assert_close(
        trace.value("stem:grad_output.0"), watched.value("stem:grad_output.0")
    )
    assert trace.summary.hooks_expected == trace.summary.hooks_fired


@pytest.mark.parametrize("make", [Watching, Tapping])
def test_a_run_computes_what_it_computes_without_hooks(tmp_path: Path, make: Make) -> None:
    plain, hooked_model = fork(), fork()
    plain(X).square().sum().backward()
    run(tmp_path, hooked_model, make, X)
    for expected, found in zip(plain.parameters(), hooked_model.parameters(), strict=True):
        assert expected.grad is not None
        assert found.grad is not None
        assert found.grad.equal(expected.grad)


@pytest.mark.parametrize("make", [Watching, Tapping])
def test_only_taps_hand_on_other_objects(tmp_path: Path, make: Make) -> None:
    met: list[torch.Tensor] = []
    inner = Calling(lambda _, x: keep(met, x))
    with hooked(tmp_path, inner, make):
        inner(X)
    assert met[0].equal(X)
    assert (met[0] is X) == (make is Watching)


def test_noise_moves_outputs_and_is_recorded_as_it_goes_on(tmp_path: Path) -> None:
    met: list[torch.Tensor] = []

    def forward(model: Any, x: torch.Tensor) -> torch.Tensor:
        met.append(model.layer(x))
        return met[0]

    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    model = Calling(forward, layer=layer)
    trace = run(tmp_path, model, lambda c: Watching(c, Noise(3, c.adapter)), X)
    assert trace.value("layer:input.0").equal(X)
    assert trace.value("layer:output.0").equal(met[0])
    assert not met[0].equal(layer(X))
    torch.testing.assert_close(met[0], layer(X))


def test_overwriting_records_the_natural_value_and_hands_on_the_reference(tmp_path: Path) -> None:
    model = fork()
    natural = cast("nn.Module", model.stem)(X)
    trace = run(tmp_path, model, fives("stem:output.0", "left:grad_input.0"), X)
    assert trace.value("stem:output.0").equal(natural)
    assert (trace.value("left:input.0") == 5).all()
    assert (trace.value("right:input.0") == 5).all()
    left, right = (trace.value(f"{user}:grad_input.0") for user in ("left", "right"))
    assert not (left == 5).any()
    torch.testing.assert_close(trace.value("stem:grad_output.0"), right + 5)


@pytest.mark.parametrize(
    ("overwritten", "start", "expected"),
    [
        pytest.param("choose:output.0", 0, [5, 6], id="output"),
        pytest.param("choose#1:input.0", 7, [8, 6], id="input"),
        pytest.param("choose#1:input.0", 0, [1, 2], id="input that leads too far"),
    ],
)
def test_a_choice_of_a_module_is_overwritten_as_any_tensor(
    tmp_path: Path, overwritten: str, start: int, expected: list[int]
) -> None:
    """But for an index that is given to a module and is further than all that it was given."""
    met: list[int] = []

    def forward(model: Any, x: torch.Tensor) -> torch.Tensor:
        first = model.choose(x)
        met.extend((int(first[0]), int(model.choose(first)[0])))
        return x

    def choice(_: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([start + 1, 0, 9 * (start > 0)]) if x.is_floating_point() else x + 1

    choose = Calling(choice)
    model = Calling(forward, choose=choose)
    with hooked(tmp_path, model, fives(overwritten)):
        model(X)
    assert met == expected
    trace = read(tmp_path)
    assert overwritten in trace.ids
    assert not trace.summary.faults


@pytest.mark.parametrize(("mask", "is_itself"), [([True, True], True), ([True, False], False)])
def test_a_mask_goes_on_as_itself_unless_the_reference_has_another(
    tmp_path: Path, mask: list[bool], *, is_itself: bool
) -> None:
    """Five is true."""
    met: list[torch.Tensor] = []
    given = torch.tensor(mask)
    user = Calling(lambda _, mask, x: x * keep(met, mask)[:, None])
    model = Calling(lambda model, x: model.user(given, x), user=user)
    trace = run(tmp_path, model, fives("user:input.0"), X.clone().requires_grad_())
    assert (met[0] is given) == is_itself
    assert met[0].all()
    assert trace.value("user:input.0").equal(given)


def test_a_parameter_that_is_passed_to_a_module_goes_on_as_itself(tmp_path: Path) -> None:
    met: list[torch.Tensor] = []
    user = Calling(lambda _, weight, x: x @ keep(met, weight))
    weight = nn.Parameter(torch.eye(4))
    model = Calling(lambda model, x: model.user(weight, x), user=user)
    trace = run(tmp_path, model, Tapping, X)
    assert met[0] is weight
    assert trace.value("user:input.0").equal(weight)
    assert "user:grad_input.0" not in trace.ids


def test_a_fault_in_backward_lets_the_gradient_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Recorder.value

    def value(self: Recorder, id_: TensorId, *args: Any, **more: Any) -> Any:
        if str(id_) == "step0/stem:grad_output.0":
            raise ZeroDivisionError("planted")
        return original(self, id_, *args, **more)

    monkeypatch.setattr(Recorder, "value", value)
    plain, tapped = fork(), fork()
    plain(X).square().sum().backward()
    trace = run(tmp_path, tapped, Tapping, X)
    assert trace.summary.faults == ("step0/stem:grad_output.0: ZeroDivisionError: planted",)
    for expected, found in zip(plain.parameters(), tapped.parameters(), strict=True):
        assert expected.grad is not None
        assert found.grad is not None
        assert found.grad.equal(expected.grad)
