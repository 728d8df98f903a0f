"""Terms of sums over ranks get noise where they are sent in fewer bits, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp

from ttrace.adapters.native.adapter import NativeAdapter
from ttrace.capture.noise import Noise
from ttrace.capture.regroup import Regrouping

TERM = torch.linspace(-1.0, 1.0, 1001)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of one rank, as references have it."""
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


def regrouping() -> Regrouping:
    return Regrouping(Noise(1, NativeAdapter(torch.nn.Linear(1, 1))))


def reduced(term: torch.Tensor) -> torch.Tensor:
    sent = term.clone()
    with regrouping():
        dist.all_reduce(sent)
    return sent


def scattered(term: torch.Tensor) -> torch.Tensor:
    into = torch.empty_like(term)
    with regrouping():
        dist.reduce_scatter_tensor(into, term.clone())
    return into


def packed(gradients: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    buffer = torch.empty(sum(each.numel() for each in gradients), dtype=dtype)
    with regrouping():
        torch.ops.fsdp.chunk_cat(gradients, dim=0, num_chunks=1, out=buffer.view(1, -1))
    return buffer


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("reduce", [reduced, scattered])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_is_reduced_in_two_bytes_moves_by_its_own_rounding(
    reduce: object, dtype: torch.dtype
) -> None:
    assert callable(reduce)
    term = TERM.to(dtype)
    moved = (reduce(term).double() - term.double()).abs()
    unit = torch.finfo(dtype).eps * term.double().abs()
    assert (moved <= 2 * unit).all()  # a unit, and its rounding
    assert (moved > 0).double().mean() > 0.3


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("reduce", [reduced, scattered])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
def test_others_are_sent_as_they_are(reduce: object, dtype: torch.dtype) -> None:
    assert callable(reduce)
    term = (100 * TERM).to(dtype)
    assert torch.equal(reduce(term), term)


def test_gradients_that_are_packed_into_fewer_bits_move() -> None:
    buffer = packed([TERM, TERM], torch.bfloat16)
    plain = torch.cat([TERM, TERM]).bfloat16()
    assert not torch.equal(buffer, plain)
    assert torch.allclose(buffer.float(), plain.float(), rtol=2**-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_that_are_packed_as_they_are_do_not(dtype: torch.dtype) -> None:
    gradients = [TERM.to(dtype), TERM.to(dtype)]
    assert torch.equal(packed(gradients, dtype), torch.cat(gradients))
