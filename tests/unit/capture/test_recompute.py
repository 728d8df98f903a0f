from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from tests.support.capturing import Calling, Recorded, record

Region = Callable[..., Tensor]
ORDERS = {"F0B0F1B1": "0011", "F0F1B0B1": "0101", "F0F1B1B0": "0110"}


def plain(function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    return function(*args)


def reentrant(function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    return checkpoint(function, *args, use_reentrant=True)


def early(function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    """Recomputation stops as soon as backward has what it needs."""
    return checkpoint(function, *args, use_reentrant=False)


def whole(function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    with set_checkpoint_early_stop(False):
        return checkpoint(function, *args, use_reentrant=False)


def block() -> nn.Module:
    return Calling(
        lambda self, x: x + self.down(self.up(x).tanh()), up=nn.Linear(4, 8), down=nn.Linear(8, 4)
    )


def twice() -> nn.Module:
    return Calling(lambda self, x: self.linear(self.linear(x).tanh()), linear=nn.Linear(4, 4))


BODIES: dict[str, Callable[[nn.Module, Tensor, Region], Tensor]] = {
    "module": lambda part, x, region: region(part, x),
    "function": lambda part, x, region: region(lambda y: part(y).sin(), x),
    "function of a view": lambda part, x, region: region(lambda y: part(y[:1]), x),
    "function of its own input": lambda part, x, region: region(lambda y: part(y * 2), x),
    "same input twice": lambda part, x, region: region(part, x) + region(part, x),
    "two arguments": lambda part, x, region: region(lambda y, z: part(y) * z, x, x * 3),
}


def model_of(body: str, part: Callable[[], nn.Module], region: Region) -> nn.Module:
    """Two layers of the body, each with one part, between modules that are not recomputed."""
    torch.manual_seed(0)

    def layer() -> nn.Module:
        return Calling(lambda self, x: BODIES[body](self.part, x, region), part=part())

    return nn.Sequential(nn.Linear(4, 4), layer(), layer(), nn.Linear(4, 1))


def run(model: nn.Module, order: str) -> None:
    """Two microbatches; the second mention of a microbatch is its backward."""
    inputs = torch.arange(16.0).reshape(2, 2, 4) / 16
    losses: dict[str, Tensor] = {}
    for microbatch in order:
        if microbatch in losses:
            losses[microbatch].backward()
        else:
            losses[microbatch] = model(inputs[int(microbatch)]).square().mean()


def originals(trace: Recorded) -> dict[tuple[str, int], Tensor]:
    """Everything that was not recomputed; a gradient that is only mentioned has its source's."""
    values: dict[tuple[str, int], Tensor] = {}
    for id_, found in trace.trace.by_id().items():
        for each in found:
            if not each.recompute:
                name = str(id_).removeprefix("step0/")
                assert (name, each.microbatch) not in values, "recorded twice"
                source = name if each.location else str(each.same_as)
                values[name, each.microbatch] = trace.value(source, microbatch=each.microbatch)
    return values


def recomputed(trace: Recorded) -> Counter[tuple[str, int]]:
    return Counter(
        (str(id_).removeprefix("step0/"), found.microbatch)
        for id_, all_found in trace.trace.by_id().items()
        for found in all_found
        if found.recompute
    )


CASES = [(body, block) for body in BODIES] + [
    (body, twice) for body in ("module", "same input twice", "function of its own input")
]
REGIONS = [(region, order) for region in (reentrant, whole) for order in ORDERS]
Traced = Callable[..., Recorded]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """The trace of a case, made once."""

    @functools.cache
    def made(body: str, part: Callable[[], nn.Module], region: Region, order: str) -> Recorded:
        model = model_of(body, part, region)
        return record(tmp_path_factory.mktemp("trace"), model, lambda: run(model, ORDERS[order]))

    return made


@pytest.mark.parametrize(("region", "order"), [*REGIONS, (early, "F0F1B0B1")])
@pytest.mark.parametrize(("body", "part"), CASES)
class TestTwoMicrobatches:
    @pytest.fixture
    def traces(
        self, traced: Traced, region: Region, part: Any, body: str, order: str
    ) -> tuple[Recorded, Recorded]:
        return traced(body, part, plain, order), traced(body, part, region, order)

    def test_what_was_made_first_is_as_without_recomputation(
        self, traces: tuple[Recorded, Recorded]
    ) -> None:
        """The same values, and the same gradients but for the order of sums; each once."""
        expected, found = map(originals, traces)
        assert set(found) == set(expected)
        for (name, microbatch), value in expected.items():
            rounding = {"rtol": 1e-5, "atol": 1e-7} if "grad" in name else {"rtol": 0, "atol": 0}
            torch.testing.assert_close(found[name, microbatch], value, **rounding)

    def test_what_is_made_again_belongs_to_the_call_that_it_repeats(
        self, traces: tuple[Recorded, Recorded], region: Region
    ) -> None:
        _, trace = traces
        repeats = recomputed(trace)
        inside = {
            (name, microbatch)
            for name, microbatch in originals(trace)
            if ".part" in name and (":input" in name or ":output" in name)
        }
        assert set(repeats.values()) == {1}
        assert set(repeats) <= inside
        if region is not early:
            assert set(repeats) == inside
        for name, microbatch in repeats:
            again = trace.value(name, microbatch=microbatch, recompute=True)
            assert torch.equal(again, trace.value(name, microbatch=microbatch)), name

    def test_nothing_went_wrong(self, traces: tuple[Recorded, Recorded]) -> None:
        _, trace = traces
        assert trace.summary.faults == ()
        assert trace.summary.unfired == ()
        assert trace.summary.hooks_fired == trace.summary.hooks_expected


def trace_of(model: nn.Module, folder: Path, x: Tensor) -> Recorded:
    return record(folder, model, lambda: model(x).square().sum().backward())


def test_recomputation_that_stops_early_leaves_the_last_module_without_an_output(
    tmp_path: Path,
) -> None:
    outputs = {}
    for name, region in {"early": early, "whole": whole}.items():
        model = model_of("module", block, region)
        trace = trace_of(model, tmp_path / name, torch.ones(2, 4))
        outputs[name] = {n for n, _ in recomputed(trace) if ":output" in n and n.startswith("1.")}
    assert outputs["early"] == {"1.part.up:output.0"}
    assert outputs["whole"] - outputs["early"] == {"1.part.down:output.0", "1.part:output.0"}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("region", [reentrant, whole])
def test_regions_inside_regions_are_matched(region: Region, tmp_path: Path) -> None:
    """The inner region is made again twice: for the outer one, then for itself."""
    layer = Calling(lambda self, x: region(self.inner, region(self.inner, x)), inner=block())
    model = Calling(
        lambda self, x: self.last(region(self.layer, self.first(x))),
        first=nn.Linear(4, 4),
        layer=layer,
        last=nn.Linear(4, 1),
    )
    trace = trace_of(model, tmp_path, torch.ones(2, 4))
    repeats = recomputed(trace)
    assert repeats["layer:output.0", 0] == 1
    for name in ("layer.inner.up:output.0", "layer.inner.up#1:output.0"):
        assert repeats[name, 0] == 2
        digests = {each.location.xxh3 for each in trace.records(name) if each.location}
        assert len(digests) == 1
    gradients = [n for n in trace.ids if ":grad" in n]
    assert all(len(trace.records(name)) == 1 for name in gradients)


@pytest.mark.parametrize("region", [reentrant, whole, early])
def test_a_model_that_is_one_region_is_matched_by_its_input(region: Region, tmp_path: Path) -> None:
    model = nn.Sequential(block(), nn.Linear(4, 1))
    inputs = [torch.full((2, 4), float(value), requires_grad=True) for value in (1, 2)]

    def step() -> None:
        losses = [region(model, x).square().sum() for x in inputs]
        for loss in losses:
            loss.backward()

    trace = record(tmp_path, model, step)
    for microbatch, x in enumerate(inputs):
        again = trace.value(":input.0", microbatch=microbatch, recompute=True)
        assert torch.equal(again, x.detach())
        assert x.grad is not None
        assert torch.equal(trace.value(":grad_input.0", microbatch=microbatch), x.grad)


def test_recomputation_with_other_values_is_recorded_as_it_was(tmp_path: Path) -> None:
    """Dropout without its random state: what was made again differs, and the trace shows it."""
    for keep in (True, False):
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": keep}
        outer = Calling(lambda self, x, o=options: checkpoint(self.inner, x, **o), inner=model)
        trace = trace_of(outer, tmp_path / str(keep), torch.ones(4, 8))
        first, again = (trace.value("inner.1:output.0", recompute=r) for r in (False, True))
        assert torch.equal(first, again) == keep


def test_a_run_without_recomputation_has_none(tmp_path: Path) -> None:
    trace = trace_of(model_of("module", block, plain), tmp_path, torch.ones(2, 4))
    assert not recomputed(trace)
