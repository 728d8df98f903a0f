"""A framework from outside of the package: one class, found, conformant, traced and compared."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import ttrace
from tests.support.capturing import record
from ttrace.adapters.base import Adapter
from ttrace.adapters.conformance import Case, run_conformance
from ttrace.adapters.registry import registered
from ttrace.core.results import Verdict
from ttrace.trace.reader import Trace

NAME = "tests.contract.test_outside"


class Engine(nn.Module):
    """A framework: wraps a model, keeps gradients in a buffer of its own, steps by itself."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.buffers_of = {p: torch.zeros_like(p) for p in module.parameters()}
        self.optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.module(x)
        return found

    def train_step(self, x: torch.Tensor) -> torch.Tensor:
        loss = self(x).square().mean()
        loss.backward()
        for parameter, buffer in self.buffers_of.items():
            assert parameter.grad is not None
            buffer.copy_(parameter.grad)
            parameter.grad = buffer
        self.optimizer.step()
        return loss.detach()


class EngineAdapter(Adapter):
    """All that has to be written: what the engine does otherwise."""

    name = "engine"

    def __init__(self, model: Engine) -> None:
        super().__init__(model.module)
        self._engine = model

    def main_grad(self, parameter: nn.Parameter) -> torch.Tensor | None:
        return self._engine.buffers_of[parameter]


def matches(model: object) -> bool:
    return isinstance(model, Engine)


def make(model: Engine) -> Adapter:
    return EngineAdapter(model)


def make_case() -> Case:
    torch.manual_seed(0)
    engine = Engine(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
    x = torch.randn(3, 4)
    return Case(model=engine, optimizers=[engine.optimizer], step=lambda: engine.train_step(x))


@pytest.fixture(params=["entry-point", "registered"])
def found(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """This file is the package; an installer would write the same two files."""
    if request.param == "registered":
        with registered("engine", sys.modules[NAME]):
            yield
        return
    metadata = tmp_path / "site" / "ttrace_engine-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ttrace-engine\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[ttrace.adapters]\nengine = {NAME}\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield


def test_it_keeps_the_promises_of_every_adapter() -> None:
    run_conformance(EngineAdapter, make_case)


@pytest.mark.usefixtures("found")
def test_a_step_is_traced_and_compared(tmp_path: Path) -> None:
    for run in ("reference", "candidate", "perturbed"):
        case = make_case()
        noise_seed = 1 if run == "perturbed" else None
        record(tmp_path / run, case.model, case.step, case.optimizers, noise_seed=noise_seed)
    trace = Trace.open(tmp_path / "reference")
    assert trace.ranks[0].info.adapter == "engine"
    assert [module.path for module in trace.ranks[0].info.modules] == ["", "0", "1", "2"]

    result = ttrace.check(
        tmp_path / "reference", tmp_path / "candidate", perturbed=[tmp_path / "perturbed"]
    )

    assert result.exit_code == 0, str(result)
    kinds = {tensor.id.kind.value for tensor in result.tensors}
    assert {"output", "grad_output", "loss", "main_grad", "optimizer", "param_after"} <= kinds
    assert {tensor.verdict for tensor in result.tensors} == {Verdict.PASS}


@pytest.mark.usefixtures("found")
def test_a_wrong_step_of_it_is_found(tmp_path: Path) -> None:
    """The comparison above could have said otherwise."""
    for run in ("reference", "candidate", "perturbed"):
        case = make_case()
        noise_seed = 1 if run == "perturbed" else None
        if run == "candidate":
            case.model.module[2].register_full_backward_pre_hook(lambda _, grad: (grad[0] * 2,))
        record(tmp_path / run, case.model, case.step, case.optimizers, noise_seed=noise_seed)
    result = ttrace.check(
        tmp_path / "reference", tmp_path / "candidate", perturbed=[tmp_path / "perturbed"]
    )
    assert result.exit_code == 1, str(result)
