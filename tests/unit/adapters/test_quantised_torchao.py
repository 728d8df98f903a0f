"""The classes of torchao itself, where it is installed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.decoding import decoded
from ttrace.adapters.quantised import kept_as, plain_values

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torchao: Any = pytest.importorskip("torchao")
    from torchao.float8.config import ScalingGranularity
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
    from torchao.float8.float8_training_tensor import LinearMMConfig
    from torchao.float8.fsdp_utils import WeightWithDynamicFloat8CastTensor
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    from torchao.quantization import Float8Tensor, PerRow, PerTensor

pytestmark = pytest.mark.extras
VALUES = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
FP4 = torch.float4_e2m1fn_x2


def trained(values: Tensor, **how: Any) -> Any:
    return hp_tensor_to_float8_dynamic(values, torch.float8_e4m3fn, LinearMMConfig(), **how)


def by_rows(dim: int) -> Any:
    rows = ScalingGranularity.AXISWISE
    return trained(VALUES, scaling_granularity=rows, axiswise_dim=dim)


def tensors() -> Iterator[Any]:
    for dtype in (torch.float32, torch.bfloat16):
        values = VALUES.to(dtype)
        name = str(dtype)
        yield pytest.param(trained(values), id=f"trained {name}")
        yield pytest.param(Float8Tensor.from_hp(values, granularity=PerRow()), id=f"rows {name}")
        yield pytest.param(
            Float8Tensor.from_hp(values, granularity=PerTensor()), id=f"tensor {name}"
        )
        for codes in (torch.float8_e4m3fn, torch.float8_e5m2, FP4):
            yield pytest.param(MXTensor.to_mx(values, codes), id=f"MX {codes} {name}")
        one = torch.tensor(0.003)
        yield pytest.param(NVFP4Tensor.to_nvfp4(values), id=f"NVFP4 {name}")
        yield pytest.param(NVFP4Tensor.to_nvfp4(values, per_tensor_scale=one), id=f"one {name}")
    for dim in (-1, 0):
        yield pytest.param(by_rows(dim), id=f"trained by rows {dim}")


@pytest.mark.parametrize("tensor", list(tensors()))
def test_codes_and_scales_are_what_the_tensor_stands_for(tensor: Any) -> None:
    """To the last bit in float32; where the class rounds to its own dtype, after that."""
    kept = kept_as(tensor)
    assert kept is not None
    values = decoded(kept)
    again = tensor.dequantize(torch.float32) if hasattr(tensor, "qdata") else None
    assert torch.equal(values.to(tensor.dtype), plain_values(tensor))
    assert again is None or torch.equal(values, again)


@pytest.mark.parametrize("kind", ["MX", "NVFP4"])
def test_a_transposed_tensor_is_the_transpose(kind: str) -> None:
    made = MXTensor.to_mx(VALUES, FP4) if kind == "MX" else NVFP4Tensor.to_nvfp4(VALUES)
    turned, straight = kept_as(made.t()), kept_as(made)
    assert turned is not None
    assert straight is not None
    assert torch.equal(decoded(turned), decoded(straight).t())


def test_scales_in_the_order_of_a_kernel_are_not_read() -> None:
    made = NVFP4Tensor.to_nvfp4(VALUES, is_swizzled_scales=True)
    assert kept_as(made) is None
    assert torch.equal(plain_values(made), made.dequantize())


def test_a_weight_for_fsdp_shares_its_memory() -> None:
    weight = WeightWithDynamicFloat8CastTensor(VALUES, LinearMMConfig(), torch.float8_e4m3fn)
    assert plain_values(weight).data_ptr() == VALUES.data_ptr()


def test_codes_with_zero_points_are_told_by_their_values() -> None:
    from torchao.quantization.quantize_.workflows.int8.int8_tensor import Int8Tensor

    made = Int8Tensor.from_hp(VALUES, granularity=PerRow())
    assert kept_as(made) is None
    assert torch.equal(plain_values(made), made.dequantize())
