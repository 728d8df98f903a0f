"""Dtypes: how a record names them, how torch does, and how safetensors does."""

from __future__ import annotations

import torch

# safetensors' names for torch's dtypes. One that is not here (complex64, say) is stored as bytes.
DTYPE_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in a record: bfloat16, not torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of a record; ValueError where this torch does not have it."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch {torch.__version__} has no dtype {name!r}")
    return dtype


def eps_of(name: str) -> float:
    """The machine epsilon of a dtype; 0 for whole numbers."""
    dtype = torch_dtype(name)
    return float(torch.finfo(dtype).eps) if dtype.is_floating_point else 0.0
