"""Tensors that are kept as codes and scales, with the attributes of frameworks' own classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Kept(Tensor):
    """A wrapper whose attributes are all that it has; `dequantize` gives what it stands for."""

    stands_for: Tensor

    @staticmethod
    def __new__(cls, stands_for: Tensor, **attributes: Any) -> Kept:
        made: Kept = torch.Tensor._make_wrapper_subclass(
            cls, stands_for.shape, dtype=stands_for.dtype
        )
        made.stands_for = stands_for
        for name, value in attributes.items():
            setattr(made, name, value)
        return made

    def __init__(self, stands_for: Tensor, **attributes: Any) -> None: ...

    def dequantize(self) -> Tensor:
        return self.stands_for

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(f"{func} of a tensor that is kept as codes")


class EngineType:
    """As Transformer Engine names a dtype."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"DType.{self.name}"


E4M3, E5M2 = EngineType("kFloat8E4M3"), EngineType("kFloat8E5M2")


def blockwise(
    values: Tensor, block: tuple[int, ...], dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Codes, and the scale of each block by which they are multiplied."""
    grid = [-(-size // each) for size, each in zip(values.shape, block, strict=True)]
    scales = torch.empty(grid)
    codes = torch.empty(values.shape, dtype=dtype)
    for place in torch.cartesian_prod(*map(torch.arange, grid)).view(-1, len(grid)).tolist():
        box = tuple(
            slice(at * each, (at + 1) * each) for at, each in zip(place, block, strict=True)
        )
        scale = values[box].abs().amax() / torch.finfo(dtype).max
        scales[tuple(place)] = scale
        codes[box] = (values[box] / scale).to(dtype)
    return codes, scales


def trained(values: Tensor, scale: float) -> Kept:
    """As torchao trains: the scale is by what values were multiplied."""
    by = torch.tensor(scale)
    codes = (values * by).to(torch.float8_e4m3fn)
    return Kept(codes.float() / by, _data=codes, _scale=by, _orig_dtype=values.dtype)
