"""Stochastic rounding: random numbers that say which way a value is rounded.

    floor(x + u)      (bits + r) & mask      where(u < fraction, up, down)

Correct layouts draw other numbers for the same value, since ranks hold parts. What they have in
common is the distribution. So a perturbed run takes the numbers that were drawn in another order,
where they come to a rounding, and only there: what is drawn for something else stays, since a batch
or a mask that is drawn in a step is no rounding. Added numbers round by no more than one unit; and
what a drawn number is compared with is what rounding left over.

Enters: the operators of a run, one by one. Leaves: what those give that round by chance. It must
not know who rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ttrace.capture.noise import Noise

_aten = torch.ops.aten
_DRAWS = frozenset(
    {
        _aten.rand,
        _aten.rand_like,
        _aten.uniform,
        _aten.uniform_,
        _aten.randint,
        _aten.randint_like,
        _aten.random,
        _aten.random_,
    }
)
_ADDS = frozenset({_aten.add, _aten.add_, _aten.sub, _aten.sub_})
# With a number: what was drawn is moved, stretched or cut, and drawn still.
_KEEPS = _ADDS | {_aten.mul, _aten.div, _aten.bitwise_and, _aten._to_copy}  # noqa: SLF001
_COMPARES = frozenset({_aten.lt, _aten.le, _aten.gt, _aten.ge})
_ROUNDS = frozenset({_aten.floor, _aten.trunc, _aten.round, _aten.bitwise_and})
# What they give of values that nobody drew: a fraction, or a distance that becomes one.
_LEAVES_OVER = frozenset({_aten.sub, _aten.sub_, _aten.frac, _aten.remainder, _aten.bitwise_and})
_SCALES = frozenset({_aten.mul, _aten.div, _aten.abs, _aten.clamp, _aten._to_copy})  # noqa: SLF001
FOLLOWED = _DRAWS | _KEEPS | _COMPARES | _ROUNDS | _LEAVES_OVER | _SCALES
_ONE_UNIT = 1.0 + 1e-6  # numbers from 0 to 1, moved by a constant


class Draws:
    """Follows what was drawn to where it is rounded with."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        self._drawn: Any = WeakTensorKeyDictionary()  # by itself
        self._within: Any = WeakTensorKeyDictionary()  # in a sum: what was drawn of it
        self._left_over: Any = WeakTensorKeyDictionary()  # fractions of what is rounded
        self.count = 0  # of roundings by chance

    def perform(self, func: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the operator gives."""
        packet = func.overloadpacket
        if packet in _DRAWS:
            result = call(*args, **kwargs)
            self._drawn[result] = True
            return result
        if not self._drawn:  # nobody holds any: nearly always
            return self._leaving_over(packet, call(*args, **kwargs), args)
        redrawn = self._redrawn(packet, args)
        if redrawn is not None:
            return call(*redrawn, **kwargs)
        result = call(*args, **kwargs)
        self._follow(packet, result, args)
        return result

    def _redrawn(self, packet: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Arguments with the drawn numbers in another order; None where it rounds by none."""
        # With u drawn, and v the numbers of u in another order:
        #     floor(x + u)    floor(x + u + (v - u))
        #     frac(x) < u     frac(x) < v
        #     m < u           as it is, where m is not left over: a mask that is drawn
        tensors = [each for each in args if isinstance(each, Tensor)]
        has_drawn = packet in _COMPARES and any(each in self._drawn for each in tensors)
        if has_drawn and any(each in self._left_over for each in tensors):
            return tuple(self._reorder(each) if self._is_drawn(each) else each for each in args)
        if packet in _ROUNDS and tensors and tensors[0] in self._within:
            part = self._within[tensors[0]]
            if _is_of_one_unit(part, *args[1:]):
                return tensors[0] + (self._reorder(part) - part), *args[1:]
        return None

    def _follow(self, packet: Any, result: Any, args: tuple[Any, ...]) -> None:
        """Remember what the result is, where it was made of what was drawn, or may be left over."""
        # Where u is drawn, by rand(4) as an example:
        #     u * 2 - 1    is drawn still           x + u        has u within
        #     x - u        has -u within            x - y        may be left over
        tensors = [each for each in args if isinstance(each, Tensor)]
        drawn = [each for each in tensors if each in self._drawn]
        if drawn and packet in _KEEPS and len(tensors) == 1:
            self._drawn[result] = True
        elif len(drawn) == 1 and packet in _ADDS and result.shape == drawn[0].shape:
            self._within[result] = drawn[0] if packet in (_aten.add, _aten.add_) else -drawn[0]
        elif not drawn:
            self._leaving_over(packet, result, args)

    def _leaving_over(self, packet: Any, result: Any, args: tuple[Any, ...]) -> Any:
        """The result, which is followed where it may be what is left over of a rounding."""
        is_of_two = packet not in _SCALES and packet in _LEAVES_OVER
        is_scaled = packet in _SCALES and args[0] in self._left_over
        if isinstance(result, Tensor) and (is_of_two or is_scaled):
            self._left_over[result] = True
        return result

    def holds(self, total: Tensor) -> bool:
        """Whether it is a sum with something that was drawn."""
        return bool(self._within) and total in self._within

    def _is_drawn(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value in self._drawn

    def _reorder(self, drawn: Tensor) -> Tensor:
        self.count += 1
        return self._noise.reordered(drawn, f"drawn {self.count}")


def _is_of_one_unit(drawn: Tensor, mask: Any = None) -> bool:
    """Whether adding it moves a value by one unit of what it is rounded to, and no further."""
    if drawn.numel() == 0:
        return False
    least, most = drawn.min().item(), drawn.max().item()
    if mask is None or isinstance(mask, Tensor):
        return most - least <= _ONE_UNIT or isinstance(mask, Tensor)
    return least >= 0 and most <= ~int(mask)
