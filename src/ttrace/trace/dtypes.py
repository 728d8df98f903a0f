"""Dtypes: how a record names them, and what torch and safetensors call them.

How fine they are, and what their codes mean, is in core/formats.py.
"""

from __future__ import annotations

import torch

from ttrace.core.formats import format_of

# A dtype that safetensors cannot name (complex64, say) is not here: it is stored as bytes.
_SAFETENSORS_NAMES = {
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
# Several numbers in a byte, or numbers that mean nothing without a scale elsewhere.
_NO_NUMBERS = frozenset(
    dtype
    for name, dtype in vars(torch).items()
    if isinstance(dtype, torch.dtype) and name.startswith(("q", "bits", "uint", "int", "float4"))
    if name.removeprefix("u") not in ("int8", "int16", "int32", "int64", "int")
)
BYTE = "U8"  # safetensors' name for bytes that are no numbers of their own


def dtype_name(dtype: torch.dtype) -> str:
    """A record names a dtype so: bfloat16, not torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of this name; ValueError where this torch does not have it."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch {torch.__version__} has no dtype {name!r}")
    return dtype


def is_readable(name: str) -> bool:
    """Whether this torch has a dtype of this name whose values are numbers."""
    dtype = getattr(torch, name, None)
    return isinstance(dtype, torch.dtype) and dtype not in _NO_NUMBERS


def safetensors_name(name: str) -> str | None:
    """The word of safetensors for a dtype; None where it has none, so that bytes are stored."""
    return _SAFETENSORS_NAMES.get(name)


def eps_of(dtype: str | torch.dtype) -> float:
    """The machine epsilon of a dtype, or of the dtype of this name; 0 for whole numbers."""
    found = format_of(dtype if isinstance(dtype, str) else dtype_name(dtype))
    return 0.0 if found is None else found.eps
