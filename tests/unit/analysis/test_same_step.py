"""A perturbed reference that made another step than the reference is no yardstick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ttrace
from tests.support.capturing import record
from ttrace.core.finding import Topic
from ttrace.core.results import CheckResult, Outcome, Verdict

REFUSED = {Topic.OTHER_START, Topic.OTHER_CALLS, Topic.OTHER_INPUTS, Topic.OTHER_UPDATES}


def trace(
    folder: Path,
    *,
    noise_seed: int | None = None,
    seed: int = 0,
    lr: float = 0.1,
    calls: int = 1,
    scale: float = 1.0,
    data_seed: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Path:
    torch.manual_seed(seed)
    model: Any = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(data_seed)).to(dtype)

    def step() -> None:
        for _ in range(calls):
            (scale * model(x)).square().mean().backward()
        optimizer.step()

    record(folder, model, step, optimizer, noise_seed=noise_seed)
    return folder


def checked(folder: Path, candidate: float = 1.0, **noisy: Any) -> CheckResult:
    return ttrace.check(
        trace(folder / "reference"),
        trace(folder / "candidate", scale=candidate),
        perturbed=[trace(folder / "noisy", noise_seed=1, **noisy)],
    )


def topics(result: CheckResult) -> set[Topic]:
    return {note.topic for note in result.notes} & REFUSED


def test_the_same_step_is_taken(tmp_path: Path) -> None:
    result = checked(tmp_path)
    assert topics(result) == set()
    assert (result.outcome, len(result.perturbed)) == (Outcome.EQUIVALENT, 1)


@pytest.mark.parametrize(
    ("other", "topic"),
    [
        ({"seed": 1}, Topic.OTHER_START),
        ({"calls": 2}, Topic.OTHER_CALLS),
        ({"dtype": torch.float64}, Topic.OTHER_CALLS),
        ({"data_seed": 2}, Topic.OTHER_INPUTS),
        ({"lr": 0.0}, Topic.OTHER_UPDATES),
        ({"lr": 0.4}, Topic.OTHER_UPDATES),
    ],
)
def test_another_step_is_refused_and_said(
    other: dict[str, Any], topic: Topic, tmp_path: Path
) -> None:
    """A candidate that is 1% off would pass by such a yardstick."""
    result = checked(tmp_path, candidate=1.01, **other)
    assert topics(result) == {topic}
    assert result.perturbed == ()
    assert result.outcome is Outcome.UNDECIDED
    verdicts = {tensor.verdict for tensor in result.tensors}
    assert verdicts == {Verdict.PASS, Verdict.UNDECIDED}


def test_one_of_two_is_left(tmp_path: Path) -> None:
    noisy = [trace(tmp_path / f"noisy-{lr}", noise_seed=1, lr=lr) for lr in (0.1, 0.4)]
    result = ttrace.check(
        trace(tmp_path / "reference"), trace(tmp_path / "candidate"), perturbed=noisy
    )
    assert result.perturbed == (str(noisy[0]),)
    assert topics(result) == {Topic.OTHER_UPDATES}
    assert result.outcome is Outcome.EQUIVALENT
