"""A reference that is recorded twice tells whether it is deterministic, and how far it is not."""

from pathlib import Path

import torch
from torch import Tensor, nn

import ttrace
from tests.support.capturing import Calling, record
from tests.support.tracing import explain
from ttrace.core.finding import Topic


def trace(folder: Path, luck: int = 0, noise_seed: int | None = None) -> Path:
    """A model whose middle is off by chance, as with kernels that add in any order."""
    torch.manual_seed(0)
    first, last = nn.Linear(8, 64), nn.Linear(64, 8)
    values = torch.randn(16, 8)
    chance = torch.randn(16, 64, generator=torch.Generator().manual_seed(luck))

    def forward(model: nn.Module, x: Tensor) -> Tensor:
        return model.last(model.first(x) * (1 + 1e-4 * chance))  # type: ignore[operator]

    model = Calling(forward, first=first, last=last)
    record(folder, model, lambda: model(values).square().mean().backward(), noise_seed=noise_seed)
    return folder


def test_a_deterministic_reference_is_said_to_be_so(tmp_path: Path) -> None:
    result = ttrace.check(
        trace(tmp_path / "reference"),
        trace(tmp_path / "candidate"),
        perturbed=[trace(tmp_path / "noisy", noise_seed=1)],
        repeated=trace(tmp_path / "repeated"),
    )
    assert result.exit_code == 0
    assert Topic.DETERMINISTIC in {note.topic for note in result.notes}


def test_what_a_reference_does_by_itself_counts_as_noise(tmp_path: Path) -> None:
    reference, candidate = trace(tmp_path / "reference"), trace(tmp_path / "candidate", luck=1)
    noisy = [trace(tmp_path / "noisy", noise_seed=1)]
    assert ttrace.check(reference, candidate, perturbed=noisy).exit_code == 1
    repeated = trace(tmp_path / "repeated", luck=2)
    result = ttrace.check(reference, candidate, perturbed=noisy, repeated=repeated)
    assert result.exit_code == 0, explain(result)
    assert Topic.NOT_DETERMINISTIC in {note.topic for note in result.notes}
