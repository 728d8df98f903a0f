"""Quantised tensors as frameworks keep them: which of their attributes are codes, which scales.

    class                                 codes           scales             a value is
    torchao Float8TrainingTensor          _data           _scale             code / scale
    torchao Float8Tensor                  qdata           scale              code x scale
    torchao MXTensor                      qdata           scale (e8m0)       code x scale
    torchao NVFP4Tensor                   qdata, packed   scale (e4m3)       code x one x scale
    Transformer Engine Float8Tensor       _data           _scale_inv         code x scale
    Transformer Engine MXFP8Tensor        _rowwise_data   _rowwise_scale_inv code x scale
    Transformer Engine Float8BlockwiseQ.  _rowwise_data   _rowwise_scale_inv code x scale

Enters: any tensor. Leaves: its codes and scales, sharing memory where they can. Classes are known
by what they have and never imported. What is arranged in any other way (scales in the order of a
kernel, zero points, columns alone) is None, and recorded by its values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ttrace.core.quantised import CODES, SCALES, QuantisedForm
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.quantised import Quantised

_PLAIN = frozenset({Tensor, nn.Parameter})
_FP4 = "float4_e2m1fn"
_TILE = 128  # of Transformer Engine's blocks, by its documentation
_MX = 32  # elements of a block, by the standard of microscaling formats


def kept_as(tensor: Tensor) -> Quantised | None:
    """Its codes and scales; None where it has none, or none of a kind that is known."""
    if type(tensor) in _PLAIN:
        return None  # nearly all are, and every record asks
    for convention in _CONVENTIONS:
        if all(hasattr(tensor, name) for name in convention.attributes):
            return convention.read(tensor)
    return None


def plain_values(tensor: Tensor) -> Tensor:
    """The values of a tensor that keeps them in another form; any other as it is."""
    if type(tensor) in _PLAIN:
        return tensor
    held: Any = tensor
    if hasattr(held, "_tensor") and hasattr(held, "_linear_mm_config"):
        return held._tensor  # noqa: SLF001  (torchao's weights, which are quantised when used)
    if hasattr(held, "to_original_precision"):
        return held.to_original_precision().to(tensor.dtype)  # rows have scales that make it wider
    return tensor if type(tensor).dequantize is Tensor.dequantize else tensor.dequantize()


def _training(tensor: Any) -> Quantised | None:
    return _made(tensor, tensor._data, tensor._scale, divides=True)  # noqa: SLF001


def _by_block(tensor: Any) -> Quantised | None:
    if getattr(tensor, "zero_point", None) is not None:
        return None
    return _made(tensor, tensor.qdata, tensor.scale)


def _mx(tensor: Any) -> Quantised | None:
    if tensor.is_swizzled_scales:
        return None
    codes = _upright(tensor.qdata) if tensor.qdata.dtype is torch.uint8 else tensor.qdata
    return None if codes is None else _made(tensor, codes, tensor.scale, block=tensor.block_size)


def _nvfp4(tensor: Any) -> Quantised | None:
    overall = tensor.per_tensor_scale
    if tensor.is_swizzled_scales or (overall is not None and overall.numel() != 1):
        return None
    codes = _upright(tensor.qdata)
    if codes is None:
        return None
    return _made(tensor, codes, tensor.scale, overall=overall, block=tensor.block_size)


def _of_engine(tensor: Any) -> Quantised | None:
    if tensor._data is None:  # noqa: SLF001
        return None
    return _made(tensor, _engine_codes(tensor, tensor._data), tensor._scale_inv)  # noqa: SLF001


def _of_engine_in_blocks(tensor: Any) -> Quantised | None:
    """Scales are padded to what kernels want, and those of 1 x 128 lie transposed."""
    data, scales = tensor._rowwise_data, tensor._rowwise_scale_inv  # noqa: SLF001
    swizzled = getattr(tensor, "_with_gemm_swizzled_scales", False)
    if data is None or scales is None or swizzled or scales.dim() != 2 or not data.dim():
        return None
    block: tuple[int, ...]
    rows, width = math.prod(data.shape[:-1]), data.shape[-1]
    is_square = getattr(tensor, "_is_2D_scaled", None)
    if is_square is None:
        block, down, scales = (1, _MX), rows, scales.view(torch.float8_e8m0fnu)
    elif is_square:
        block, down = (_TILE, _TILE), -(-rows // _TILE)
    else:
        block, down, scales = (1, _TILE), rows, scales.t()
    if data.dim() != 2 and is_square:
        return None
    across = -(-width // block[-1])
    scales = scales[:down, :across]
    if scales.shape != (down, across):
        return None
    if data.dim() != 2:
        scales = scales.reshape(*data.shape[:-1], across)
        block = (1,) * (data.dim() - 1) + block[1:]
    return _made(tensor, _engine_codes(tensor, data), scales, block=block)


def _engine_codes(tensor: Any, data: Tensor) -> Tensor:
    is_e4m3 = "E4M3" in str(tensor._fp8_dtype)  # noqa: SLF001
    return data.view(torch.float8_e4m3fn if is_e4m3 else torch.float8_e5m2)


def _upright(packed: Tensor) -> Tensor | None:
    """Codes of 4 bits, one in each byte; two of them were packed along the last dim in memory."""
    packed = packed.view(torch.uint8)
    if packed.is_contiguous():
        return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    turned = _upright(packed.mT) if packed.mT.is_contiguous() else None
    return None if turned is None else turned.mT


def _made(
    tensor: Tensor,
    codes: Tensor,
    scales: Tensor,
    *,
    block: int | tuple[int, ...] | None = None,
    divides: bool = False,
    overall: Tensor | None = None,
) -> Quantised | None:
    """`block`: one size is of the dim that is short of scales; None: by the shapes of both."""
    # codes [256, 512] in e4m3, scales [2, 4] in float32, `block` None: each scale is of 128 x 128
    # codes, and the grid of such blocks in [256, 512] is [2, 4] again, or nobody knows how it lies
    if codes.shape != tensor.shape:
        return None
    if scales.numel() == 1:
        scales, block = scales.reshape([1] * codes.dim()), None
    if scales.dim() != codes.dim():
        return None
    if block is None or isinstance(block, int):
        pairs = zip(codes.shape, scales.shape, strict=True)
        block = tuple(_covered(size, count, block) for size, count in pairs)
    of_codes = _FP4 if codes.dtype is torch.uint8 else dtype_name(codes.dtype)
    of_scales = dtype_name(scales.dtype)
    if of_codes not in CODES or of_scales not in SCALES or not all(block):
        return None
    form = QuantisedForm(
        codes=of_codes,
        scales=of_scales,
        block=block,
        divides=divides,
        has_overall=overall is not None,
    )
    if form.grid(codes.shape) != tuple(scales.shape):
        return None
    one = None if overall is None else overall.detach().float().reshape(1)
    return Quantised(form, codes, scales, one)


def _covered(size: int, count: int, block: int | None) -> int:
    """How many of these elements share one of these scales; 0 where that is not one number."""
    if count == size:
        return 1
    if block is not None:
        return block
    return size // count if count and size % count == 0 else 0


class _Convention(NamedTuple):
    """What every tensor of a class has, and how it is read; the first that fits counts."""

    attributes: tuple[str, ...]
    read: Callable[[Any], Quantised | None]


_CONVENTIONS = (
    _Convention(("_data", "_scale", "_orig_dtype"), _training),
    _Convention(("qdata", "scale", "elem_dtype", "block_size", "is_swizzled_scales"), _mx),
    _Convention(("qdata", "scale", "per_tensor_scale", "is_swizzled_scales"), _nvfp4),
    _Convention(("qdata", "scale", "block_size", "act_quant_kwargs"), _by_block),
    _Convention(("_rowwise_data", "_rowwise_scale_inv", "_fp8_dtype"), _of_engine_in_blocks),
    _Convention(("_data", "_scale_inv", "_fp8_dtype"), _of_engine),
)
