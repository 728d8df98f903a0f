"""Calls in blocks of samples: results, gradients and hooks are those of one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.capturing import record
from ttrace.core.layout import Run
from ttrace.errors import UsageError
from ttrace.trace.plan import SampleBlocks, read_blocks, write_blocks

IN_TURNS = ((Run(0, 1), Run(2, 1)), (Run(1, 1), Run(3, 1)))
HALVES = ((Run(0, 2),), (Run(2, 2),))


class Peaked(nn.Module):
    """What it gives depends on which samples come together; it hands its bias on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3))
        self.calls: list[tuple[int, ...]] = []

    def forward(self, x: Tensor, times: float = 1.0) -> tuple[Tensor, Tensor]:
        self.calls.append(tuple(x.shape))
        return x @ self.weight.T * x.detach().abs().amax() * times, self.bias


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.peaked = Peaked()

    def forward(self, x: Tensor) -> Tensor:
        y, bias = self.peaked(x, times=2.0)
        found: Tensor = y + bias
        return found


def cut(folder: Path, **changes: Any) -> Path:
    how: dict[str, Any] = {"module": "peaked", "dim": 0, "blocks": HALVES}
    write_blocks(folder / "blocks.json", [SampleBlocks(**(how | changes))])
    return folder / "blocks.json"


def made(seed: int = 0) -> tuple[Model, Tensor]:
    torch.manual_seed(seed)
    return Model(), torch.randn(4, 3) * torch.tensor([1.0, 2.0, 3.0, 4.0])[:, None]


@pytest.mark.parametrize("blocks", [HALVES, IN_TURNS], ids=["halves", "in turns"])
def test_each_block_is_called_by_itself_and_the_rest_is_as_before(
    blocks: tuple[tuple[Run, ...], ...], tmp_path: Path
) -> None:
    model, x = made()
    x.requires_grad_()
    trace = record(
        tmp_path / "trace",
        model,
        lambda: model(x).square().sum().backward(),
        blocks=cut(tmp_path, blocks=blocks),
    )
    assert model.peaked.calls == [(2, 3), (2, 3)]
    model.zero_grad()
    alone, y = made()
    y.requires_grad_()
    for runs in blocks:
        part = torch.cat([y[run.start : (run.start or 0) + run.length] for run in runs])
        alone(part).square().sum().backward()
    rows = [index for runs in blocks for run in runs for index in run.indices]
    assert x.grad is not None
    assert y.grad is not None
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(trace.value("peaked:grad.weight"), alone.peaked.weight.grad)
    parts = [alone.peaked(y[list(rows[at : at + 2])], times=2.0)[0] for at in (0, 2)]
    expected = torch.cat(parts)[torch.tensor(rows).argsort()]
    torch.testing.assert_close(trace.value("peaked:output.0"), expected.detach())
    assert len(trace.records("peaked:output.0")) == 1  # hooks saw one call
    assert trace.value("peaked:output.1").shape == (3,)


def test_it_ends_with_the_recording(tmp_path: Path) -> None:
    model, x = made()
    record(tmp_path / "trace", model, lambda: model(x).sum().backward(), blocks=cut(tmp_path))
    model.peaked.calls.clear()
    model(x)
    assert model.peaked.calls == [(4, 3)]
    assert "forward" not in vars(model.peaked)


@pytest.mark.parametrize(
    "changes",
    [
        {"module": "other"},
        {"rank": 1},
        {"microbatch": 1},
        {"dim": 1},
        {"blocks": ((Run(0, 1),), (Run(1, 1),))},
    ],
    ids=str,
)
def test_what_does_not_fit_is_called_as_it_is(changes: dict[str, Any], tmp_path: Path) -> None:
    model, x = made()
    blocks = cut(tmp_path, **changes)
    record(tmp_path / "trace", model, lambda: model(x).sum().backward(), blocks=blocks)
    assert model.peaked.calls == [(4, 3)]


def test_a_module_that_cannot_run_on_fewer_samples_runs_on_all(tmp_path: Path) -> None:
    class Fixed(Peaked):
        def forward(self, x: Tensor, times: float = 1.0) -> tuple[Tensor, Tensor]:
            found = super().forward(x, times)
            if len(x) != 4:
                raise ValueError("four samples were expected")
            return found

    model, x = made()
    model.peaked = Fixed()
    trace = record(
        tmp_path / "trace", model, lambda: model(x).sum().backward(), blocks=cut(tmp_path)
    )
    assert model.peaked.calls == [(2, 3), (4, 3)]
    note = "peaked was not run in blocks of samples: four samples were expected"
    assert note in trace.summary.notes
    assert not trace.summary.faults


def test_its_own_exception_passes(tmp_path: Path) -> None:
    class Broken(Peaked):
        def forward(self, x: Tensor, times: float = 1.0) -> tuple[Tensor, Tensor]:
            raise ValueError("it is broken")

    model, x = made()
    model.peaked = Broken()
    with pytest.raises(ValueError, match="it is broken"):
        record(tmp_path / "trace", model, lambda: model(x), blocks=cut(tmp_path))


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    calls = (
        SampleBlocks(module="a", dim=1, blocks=IN_TURNS),
        SampleBlocks(module="b", rank=3, microbatch=2, dim=0, blocks=HALVES),
    )
    write_blocks(tmp_path / "folder" / "blocks.json", calls)
    assert read_blocks(tmp_path / "folder" / "blocks.json") == calls


def test_another_file_is_refused(tmp_path: Path) -> None:
    file = cut(tmp_path)
    file.write_bytes(file.read_bytes().replace(b"peaked", b"speaks"))
    with pytest.raises(UsageError, match=r"does not tell blocks of samples: .* was changed"):
        read_blocks(file)
