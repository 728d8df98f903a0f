"""torch._scaled_mm without codes: the same arguments, and values where codes were."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def product_of(func: Any, a: Tensor, b: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
    """In fp32, rounded to the dtype asked for; None where scales lie in a form not known here."""
    names = [argument.name for argument in func._schema.arguments][2:]  # noqa: SLF001
    given = dict(zip(names, args, strict=False)) | kwargs
    wide = [
        _times_scale(values.float(), given.get(name))
        for values, name in ((a, "scale_a"), (b, "scale_b"))
    ]
    dtype = given.get("out_dtype") or torch.bfloat16
    if wide[0] is None or wide[1] is None or given.get("scale_result") is not None:
        return None
    if dtype.itemsize == 1:
        return None
    made = wide[0] @ wide[1]
    bias = given.get("bias")
    return (made if bias is None else made + bias.float()).to(dtype)


def _times_scale(values: Tensor, scale: Tensor | None) -> Tensor | None:
    """Of the tensor, of rows or columns, or of blocks that cut both dims evenly."""
    if scale is None or scale.dtype != torch.float32:
        return None
    if scale.numel() == 1:
        return values * scale.reshape(())
    if scale.dim() != values.dim():
        return None
    for dim, size in enumerate(values.shape):
        parts = scale.shape[dim]
        if parts == 0 or size % parts:
            return None
        if parts not in (1, size):
            scale = scale.repeat_interleave(size // parts, dim)
    return values * scale
