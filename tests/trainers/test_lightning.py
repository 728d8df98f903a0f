"""The callback of Lightning: which base it has, what it leaves of a module, when steps end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

L = pytest.importorskip("lightning")

from ttrace.capture.settings import Settings  # noqa: E402
from ttrace.integrations.lightning import TTraceCallback  # noqa: E402
from ttrace.trace.reader import Trace  # noqa: E402

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("ignore"),  # Lightning advises workers, loggers and its own cloud
]


class Regression(L.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.seen: list[bool] = []  # whether the step that runs is the class's own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        return y

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.seen.append("training_step" not in vars(self))
        return self(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        # 0.1 would land on the minimum of equal samples: the next gradients may be exactly zero,
        # as if somebody had dropped them.
        return torch.optim.SGD(self.parameters(), lr=0.01)


class WithoutNumber(Regression):
    def training_step(self, batch: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().training_step(batch, 0)


class Failing(Regression):
    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        raise ArithmeticError


def fit(model: Regression, **options: Any) -> None:
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=[TTraceCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(model, DataLoader(torch.ones(6, 4), batch_size=1))  # type: ignore[arg-type]


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings = Settings(folder=tmp_path / "trace", steps=2)
    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)
    return tmp_path / "trace"


def ids(folder: Path) -> set[str]:
    return {str(id_) for id_ in Trace.open(folder).by_id()}


def bases(imports: str) -> str:
    script = (
        f"{imports}\n"
        "from ttrace.integrations.lightning import TTraceCallback\n"
        "print(*(base.__module__.partition('.')[0] for base in TTraceCallback.__bases__))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ("import lightning", "lightning"),
        ("import pytorch_lightning", "pytorch_lightning"),
        ("import pytorch_lightning, lightning", "lightning pytorch_lightning"),
        ("", "lightning"),
    ],
)
def test_it_is_a_callback_of_what_the_script_imported(imports: str, expected: str) -> None:
    assert bases(imports) == expected


def test_a_training_step_is_a_call_of_the_module(trace: Path) -> None:
    model = Regression()
    fit(model)
    assert {"step0/:input.0", "step0/#1:input.0", "step0/linear:param_after.weight"} <= ids(trace)
    assert "training_step" not in vars(model)
    assert not any(model.seen)


@pytest.mark.usefixtures("trace")
def test_a_step_that_takes_no_number_gets_none() -> None:
    model = WithoutNumber()
    fit(model)
    assert len(model.seen) == 6


@pytest.mark.usefixtures("trace")
def test_a_module_is_as_it_was_after_an_exception() -> None:
    model = Failing()
    with pytest.raises(ArithmeticError):
        fit(model)
    assert "training_step" not in vars(model)


@pytest.mark.usefixtures("trace")
def test_a_step_of_its_own_is_given_back() -> None:
    model = Regression()
    own = model.__dict__["training_step"] = model.training_step
    fit(model)
    assert vars(model)["training_step"] is own


def test_batches_that_are_accumulated_are_one_step(trace: Path) -> None:
    fit(Regression(), accumulate_grad_batches=4)  # and a window of 2 at the end
    opened = Trace.open(trace)
    assert opened.steps == (0, 1)
    losses = [str(id_) for id_, records in opened.by_id().items() for _ in records]
    assert (losses.count("step0/:loss"), losses.count("step1/:loss")) == (4, 2)


def test_without_a_traced_run_nothing_is_touched() -> None:
    model = Regression()
    fit(model)
    assert all(model.seen)
