"""Tensors that frameworks keep as codes and scales are known by their attributes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.decoding import decoded
from tests.support.kept import E4M3, E5M2, Kept, blockwise, trained
from ttrace.adapters.quantised import kept_as, plain_values

DRAW = torch.Generator().manual_seed(0)
VALUES = torch.randn(256, 192, generator=DRAW)


def of_engine_blocks(values: Tensor, *, is_square: bool) -> Kept:
    """Scales of 128 x 128 are padded to fours; those of 1 x 128 lie transposed besides."""
    rows = values.reshape(-1, values.shape[-1])
    block = (128, 128) if is_square else (1, 128)
    codes, scales = blockwise(rows, block)
    wide = scales.repeat_interleave(block[0], 0).repeat_interleave(128, 1)
    stands_for = codes.float() * wide[: rows.shape[0], : rows.shape[1]]
    held = scales if is_square else scales.t()
    return Kept(
        stands_for.view(values.shape),
        _rowwise_data=codes.view(torch.uint8).view(values.shape),
        _rowwise_scale_inv=torch.nn.functional.pad(held, (0, -held.shape[1] % 4)),
        _fp8_dtype=E4M3,
        _is_2D_scaled=is_square,
    )


def of_engine_mx(values: Tensor) -> Kept:
    rows = values.reshape(-1, values.shape[-1])
    powers = torch.full((rows.shape[0], rows.shape[1] // 32), 126, dtype=torch.uint8)
    powers[::2] += 3
    wide = powers.view(torch.float8_e8m0fnu).float().repeat_interleave(32, 1)
    codes = (rows / wide).to(torch.float8_e5m2)
    down, across = -rows.shape[0] % 128, -powers.shape[1] % 4
    return Kept(
        (codes.float() * wide).view(values.shape),
        _rowwise_data=codes.view(torch.uint8).view(values.shape),
        _rowwise_scale_inv=torch.nn.functional.pad(powers, (0, across, 0, down)),
        _fp8_dtype=E5M2,
    )


def of_engine(values: Tensor) -> Kept:
    codes, scales = blockwise(values, tuple(values.shape))
    return Kept(
        codes.float() * scales,
        _data=codes.view(torch.uint8),
        _scale_inv=scales.view(1),
        _fp8_dtype=E4M3,
    )


KNOWN = {
    "torchao, trained": trained(VALUES, 100.0),
    "Transformer Engine, per tensor": of_engine(VALUES),
    "Transformer Engine, 128x128": of_engine_blocks(VALUES, is_square=True),
    "Transformer Engine, 128x128 cut off": of_engine_blocks(VALUES[:200, :130], is_square=True),
    "Transformer Engine, 1x128": of_engine_blocks(VALUES[:250], is_square=False),
    "Transformer Engine, 1x128 of samples": of_engine_blocks(
        VALUES.view(4, 64, 192), is_square=False
    ),
    "Transformer Engine, MX": of_engine_mx(VALUES),
    "Transformer Engine, MX of samples": of_engine_mx(VALUES.view(4, 64, 192)),
}


@pytest.mark.parametrize("tensor", KNOWN.values(), ids=KNOWN)
def test_codes_and_scales_are_what_the_tensor_stands_for(tensor: Kept) -> None:
    kept = kept_as(tensor)
    assert kept is not None
    assert torch.equal(decoded(kept), tensor.stands_for)
    assert torch.equal(plain_values(tensor), tensor.stands_for)


def of_blocks(**attributes: Any) -> Kept:
    """As torchao keeps weights for inference, with what is given otherwise."""
    codes, scales = blockwise(VALUES, (1, 192))
    known = {
        "qdata": codes,
        "scale": scales,
        "block_size": [1, 192],
        "act_quant_kwargs": None,
    }
    return Kept(codes.float() * scales, **(known | attributes))


UNKNOWN = {
    "zero points": of_blocks(zero_point=torch.ones(256, 1)),
    "scales of other dims": of_blocks(scale=torch.ones(256)),
    "scales that do not divide the rows": of_blocks(scale=torch.ones(255, 1)),
    "scales that are whole numbers": of_blocks(scale=torch.ones(256, 1, dtype=torch.int32)),
    "codes of another shape": of_blocks(qdata=torch.ones(256, 96).to(torch.float8_e4m3fn)),
    "codes that are wide": of_blocks(qdata=torch.ones(256, 192)),
    "columns alone": Kept(VALUES, _rowwise_data=None, _rowwise_scale_inv=None, _fp8_dtype=E4M3),
    "a transpose alone": Kept(VALUES, _data=None, _scale_inv=torch.ones(1), _fp8_dtype=E4M3),
    "scales in the order of a kernel": Kept(
        VALUES,
        _rowwise_data=VALUES.to(torch.float8_e4m3fn).view(torch.uint8),
        _rowwise_scale_inv=torch.ones(256, 8, dtype=torch.uint8),
        _fp8_dtype=E4M3,
        _with_gemm_swizzled_scales=True,
    ),
    "too few scales": Kept(
        VALUES,
        _rowwise_data=VALUES.to(torch.float8_e4m3fn).view(torch.uint8),
        _rowwise_scale_inv=torch.ones(4, 6, dtype=torch.uint8),
        _fp8_dtype=E4M3,
    ),
}


@pytest.mark.parametrize("tensor", UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_arranged_in_another_way_is_told_by_its_values(tensor: Kept) -> None:
    assert kept_as(tensor) is None
    assert torch.equal(plain_values(tensor), tensor.stands_for)


def test_what_such_a_tensor_is_otherwise_like_is_known() -> None:
    kept = kept_as(of_blocks())
    assert kept is not None
    assert kept.form.block == (1, 192)


@pytest.mark.parametrize("tensor", [torch.ones(2), torch.nn.Parameter(torch.ones(2))])
def test_a_plain_tensor_is_its_own_values(tensor: Tensor) -> None:
    assert kept_as(tensor) is None
    assert plain_values(tensor) is tensor


def test_a_weight_that_is_quantised_when_it_is_used_has_its_values_in_full() -> None:
    class Weight(Kept):
        """As torchao holds a weight that FSDP gathers in fp8."""

    inside = torch.ones(2, 3)
    weight = Weight(torch.ones(2, 3), _tensor=inside, _linear_mm_config=None)
    assert plain_values(weight) is inside
    assert kept_as(weight) is None
