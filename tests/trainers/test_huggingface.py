"""The callback of the Hugging Face Trainer: what it attaches to, and when steps begin and end."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from ttrace.capture.settings import OUT, Settings  # noqa: E402
from ttrace.integrations import huggingface  # noqa: E402
from ttrace.integrations.huggingface import TTraceCallback  # noqa: E402
from ttrace.trace.reader import Trace  # noqa: E402

pytestmark = pytest.mark.trainers


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.linear(x).squeeze(-1) - labels).square().mean()}


class Wrapper(nn.Module):
    """As DistributedDataParallel is one, and others that are not known."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self.module(*arguments, **named)


class Calls:
    """A tracer that counts."""

    def __init__(self) -> None:
        self.given: list[tuple[Any, Any]] = []
        self.made: list[str] = []

    def attach(self, model: Any, optimizer: Any) -> "Calls":
        self.given.append((model, optimizer))
        return self

    def begin(self) -> None:
        self.made.append("begin")

    def end(self) -> None:
        self.made.append("end")


def make_trainer(folder: Path, kind: type = transformers.Trainer, **named: Any) -> Any:
    rows = [{"x": torch.ones(4) * n, "labels": torch.tensor(float(n))} for n in range(8)]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        max_steps=2,
        per_device_train_batch_size=2,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        **named,
    )
    callbacks = [TTraceCallback()]
    return kind(model=Regression(), args=arguments, train_dataset=rows, callbacks=callbacks)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    monkeypatch.setenv(OUT, "somewhere")
    monkeypatch.setattr(huggingface, "attach", calls.attach)
    return calls


def test_a_step_is_entered_once_for_all_its_microbatches(calls: Calls, tmp_path: Path) -> None:
    make_trainer(tmp_path, gradient_accumulation_steps=2).train()
    assert calls.made == ["begin", "end", "begin", "end"]


def test_attaches_to_what_the_trainer_calls(calls: Calls, tmp_path: Path) -> None:
    class Wrapping(transformers.Trainer):  # type: ignore[misc, name-defined]
        def _wrap_model(self, model: nn.Module, *_: Any, **__: Any) -> nn.Module:
            return Wrapper(model)

    trainer = make_trainer(tmp_path, Wrapping)
    trainer.train()
    ((model, optimizer),) = calls.given
    assert isinstance(model, Wrapper)
    assert model.module is trainer.model
    assert optimizer is trainer.optimizer


def test_a_second_training_is_not_attached_to_again(calls: Calls, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.train()
    trainer.train()
    assert len(calls.given) == 1


def test_who_calls_it_without_a_trainer_gives_the_model(calls: Calls) -> None:
    model = Regression()
    TTraceCallback().on_train_begin(None, None, None, model=model, optimizer=None)
    assert calls.given == [(model, None)]


def test_a_callback_that_came_late_is_inert(calls: Calls) -> None:
    callback = TTraceCallback()
    callback.on_step_begin(None, None, None)
    callback.on_optimizer_step(None, None, None)
    assert calls.made == []


def test_nothing_is_attached_to_where_nobody_traces(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OUT)
    make_trainer(tmp_path).train()
    assert calls.given == []
    assert calls.made == []


def test_what_cannot_be_traced_is_trained_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in Settings(folder=tmp_path / "trace").to_environment().items():
        monkeypatch.setenv(name, value)
    trainer = make_trainer(tmp_path / "output")
    monkeypatch.setattr(TTraceCallback, "_wrapped", lambda *_: "no model")
    trainer.train()
    assert trainer.state.global_step == 2


def test_a_trace_holds_the_steps_that_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in Settings(folder=tmp_path / "trace", steps=2).to_environment().items():
        monkeypatch.setenv(name, value)
    trainer = make_trainer(tmp_path / "output", gradient_accumulation_steps=2)
    trainer.train()
    trace = Trace.open(tmp_path / "trace")
    assert trace.steps == (0, 1)
