"""Codes: operators that round to a grid of few bits, and which modules have them made.

Two correct layouts hand such an operator values that differ by their own rounding. Where one lies
near a border, it gets another code in one of them, and is wrong by a whole step: by 1/16 in e4m3.
In fp32 that is rare, so that a candidate may have one flip where a perturbed run has none. Noise on
what is rounded, as much as flips some codes of every tensor, shows what flips do.

A run with noise sees on its way which modules make codes, and of which dtype; an isolated one is
watched for it: what a module of one run quantises and that of the other does not, or in another
format, says what is wrong where they differ.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ttrace.adapters.patching import TellFault
from ttrace.capture.operator_mode import OperatorMode, are_fake, are_plain, has_compiled
from ttrace.core.quantised import WHOLE_NUMBERS, Quantising
from ttrace.trace.dtypes import dtype_name

_aten = torch.ops.aten
_TO_A_DTYPE, _INTO, _TO_WHOLE = _aten._to_copy, _aten.copy_, (_aten.round, _aten.round_)  # noqa: SLF001
MAKE_CODES = frozenset({_TO_A_DTYPE, _INTO, *_TO_WHOLE})
Current = Callable[[], str | None]  # the path of the module that runs


class Coding(NamedTuple):
    """`place` of the values among the operator's arguments."""

    place: int
    step: Callable[[Tensor], Tensor]
    codes: str  # what comes of it


def coding_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coding | None:
    """None where the operator rounds nothing, or in a dtype that is as fine as others are."""
    packet = func.overloadpacket
    if packet in _TO_WHOLE:
        is_plain = not kwargs and len(args) == 1 and args[0].is_floating_point()
        return (
            Coding(0, torch.ones_like, WHOLE_NUMBERS)
            if is_plain and packet is _aten.round
            else None
        )
    place, into = (1, args[0].dtype) if packet is _INTO else (0, kwargs.get("dtype"))
    values = args[place]
    if not isinstance(into, torch.dtype) or not _is_coarse(into):
        return None
    if not isinstance(values, Tensor) or _is_coarse(values.dtype):
        return None
    if not values.is_floating_point():
        return None
    return Coding(place, lambda value: steps(value, into), dtype_name(into))


def _is_coarse(dtype: torch.dtype) -> bool:
    """Floating-point numbers of one byte."""
    return dtype.is_floating_point and dtype.itemsize == 1


def steps(values: Tensor, dtype: torch.dtype) -> Tensor:
    """From each value to the next number of the dtype; below its normal numbers all are alike."""
    info = torch.finfo(dtype)
    _, exponents = torch.frexp(values)  # values = mantissa in [0.5, 1) times 2 ** exponent
    found = torch.exp2(exponents.to(values.dtype) - 1) * info.eps
    return found.clamp_(min=info.smallest_normal * info.eps)


class CodesMade:
    """The dtypes of codes, by module, in the order in which they were first met."""

    def __init__(self, current: Current) -> None:
        self._current = current
        self._found: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def add(self, codes: str) -> None:
        path = self._current()
        if path is not None:
            self._found[path][codes] = None

    def told(self) -> tuple[Quantising, ...]:
        return tuple(
            Quantising(module=path, codes=tuple(codes)) for path, codes in self._found.items()
        )


class CodesWatch(OperatorMode):
    """Looks at casts, and changes nothing."""

    def __init__(
        self,
        current: Current,
        roots: Sequence[nn.Module] = (),
        told: TellFault | None = None,
    ) -> None:
        super().__init__(told)
        self._made = CodesMade(current)
        self._roots = roots

    def _operate(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if are_fake(types) or func.overloadpacket not in MAKE_CODES:
            return func(*args, **kwargs)
        if not are_plain(types):
            return NotImplemented
        return self._guarded(func, functools.partial(self._look, func), args, kwargs)

    def _look(self, func: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        coding = coding_of(func, args, kwargs)
        if coding is not None:
            self._made.add(coding.codes)
        return call(*args, **kwargs)

    def is_needed(self, *, records: bool) -> bool:
        return records and not has_compiled(self._roots)

    def quantising(self) -> tuple[Quantising, ...] | None:
        """None where some of it could not be seen."""
        return None if has_compiled(self._roots) else self._made.told()
