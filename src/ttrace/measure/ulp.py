"""Units in the last place: how many floats lie between two of one dtype.

    0.0 and the smallest number above it    1
    1.0 and 1.0 + eps                       1
    -0.0 and 0.0                            0

Enters: tensors of one floating dtype. Leaves: distances, or how many there are of each magnitude.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_AS_WHOLE = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}  # by bytes of an element


def bits_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The bits of a contiguous tensor as whole numbers of its width."""
    return tensor.view(torch.uint8).numpy().view(_AS_WHOLE[tensor.element_size()])


def distances(reference: npt.NDArray[Any], candidate: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What lies between floats of either sign, given their bits; they must be finite."""
    a, b = _in_order(reference), _in_order(candidate)
    unsigned = np.uint64 if a.itemsize == 8 else np.uint32  # whose difference cannot overflow
    return np.maximum(a, b).view(unsigned) - np.minimum(a, b).view(unsigned)


def magnitudes(apart: npt.NDArray[Any]) -> list[int]:
    """How many distances are 0, then how many are 2**(n-1) to 2**n - 1, up to the largest."""
    top = int(apart.max()).bit_length() if apart.size else 0
    at_least = [apart.size, *(int(np.count_nonzero(apart >= 2**n)) for n in range(top)), 0]
    return [more - fewer for more, fewer in itertools.pairwise(at_least)]


def _in_order(bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Floats of either sign in one order, in which neighbours differ by 1 and -0 is 0."""
    wide = np.int64 if bits.itemsize == 8 else np.int32
    sign: npt.NDArray[Any] = (bits >> (8 * bits.itemsize - 1)).astype(wide)  # 0 or -1
    magnitude: npt.NDArray[Any] = (bits & np.iinfo(bits.dtype).max).astype(wide)
    return (magnitude ^ sign) - sign
