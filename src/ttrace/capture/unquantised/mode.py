"""Products in high precision: while open, modules of a run compute as if nothing were quantised.

    codes = (x / scale).to(torch.float8_e4m3fn)     as before
    codes.float() * scale                           x
    torch._scaled_mm(codes, ...)                    the product of values, in fp32

Codes stay what they are: maxima, scales, histories and all that is sent are those of the run.
Where codes become numbers again, in one of the modules asked about, they become those that were
cast. Scales need not be known, since what is divided by them before a cast is multiplied by them
after it. Numbers that are brought onto a grid without a cast stay unrounded.

What cannot be undone runs as it is, and is counted: codes that were made before recording began or
came from another rank, and operators that are not known here.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from ttrace.adapters.patching import TellFault
from ttrace.capture.operator_mode import OperatorMode, are_fake, are_plain
from ttrace.capture.unquantised.regions import Regions
from ttrace.capture.unquantised.scaled import product_of
from ttrace.capture.unquantised.values import ValuesBefore, holds_codes
from ttrace.core.undone import Undone

_aten = torch.ops.aten
_TO_A_DTYPE, _INTO = _aten._to_copy, _aten.copy_  # noqa: SLF001
_SCALED_PRODUCT = _aten._scaled_mm  # noqa: SLF001
# They make a storage of their own from elements of others.
_MOVES = frozenset(
    {
        *(_aten.clone, _aten.cat, _aten.stack, _aten.index_select, _aten.gather, _aten.index),
        *(_aten.constant_pad_nd, _aten.roll, _aten.flip, _aten.repeat),
    }
)
_LARGEST = frozenset({448.0, 57344.0, 240.0})  # of one byte: e4m3fn, e5m2 and its fnuz, e4m3fnuz

_UNKNOWN = "codes whose values before the cast nobody saw"


class HighPrecision(OperatorMode):
    """Undoes quantisation in the modules of these regions."""

    def __init__(self, regions: Regions, told: TellFault | None = None) -> None:
        super().__init__(told)
        self._regions = regions
        self._values = ValuesBefore()
        self._unclamped: Any = WeakTensorKeyDictionary()  # what was cut to the range of codes
        self._unrounded: Any = WeakTensorKeyDictionary()
        self._drawn: Any = WeakTensorKeyDictionary()  # by chance
        self._before_draw: Any = WeakTensorKeyDictionary()  # of a sum: its term that was not
        self._changed: Counter[str] = Counter()
        self._left: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._rules: dict[Any, Callable[..., Any]] = {
            _TO_A_DTYPE: self._to_a_dtype,
            _INTO: self._into,
            _SCALED_PRODUCT: self._product,
            _aten.clamp: self._clamped,
            _aten.round: self._rounded,
            _aten.floor: self._cut_off,
            _aten.add: self._added,
            **dict.fromkeys((_aten.rand, _aten.rand_like), self._draw),
            **dict.fromkeys(_MOVES, self._moved),
        }

    def undone(self) -> tuple[Undone, ...]:
        """Of every module in which there was something to undo."""
        return tuple(
            Undone(module=path, changed=self._changed[path], left=tuple(self._left[path]))
            for path in sorted(self._changed.keys() | self._left.keys())
        )

    def notes(self, roots: Iterable[nn.Module] = ()) -> list[str]:
        """How much was undone."""
        return [f"{sum(self._changed.values())} operators got values in place of their codes"]

    def _operate(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if are_fake(types):
            return func(*args, **kwargs)
        if not are_plain(types):
            return NotImplemented
        rule = self._rules.get(func.overloadpacket, self._other)
        if _is_composed(func) and _meets_codes(args, kwargs):
            rule = self._in_parts  # as inside of torchao's tensors, where autograd did not do it
        return self._guarded(func, functools.partial(rule, func), args, kwargs)

    def _in_parts(self, func: Any, _: Any, *args: Any, **kwargs: Any) -> Any:
        """The operators that one is made of come here one by one."""
        with self:
            return func.decompose(*args, **kwargs)

    def _to_a_dtype(self, func: Any, call: Any, x: Tensor, **kwargs: Any) -> Any:
        into = kwargs.get("dtype") or x.dtype
        if not holds_codes(x.dtype):
            if not into.is_floating_point and x in self._unrounded:
                return func(torch.round(x), **kwargs)
            result = call(x, **kwargs)
            if holds_codes(into) and x.is_floating_point():
                self._values.remember(result, self._unclamped.get(x, x))
            return result
        if holds_codes(into):
            return self._moved(func, call, x, **kwargs)
        values = self._instead_of(x)
        return call(x, **kwargs) if values is None else func(values, **kwargs)

    def _into(self, func: Any, call: Any, to: Tensor, x: Tensor, *more: Any) -> Any:
        if not holds_codes(to.dtype):
            values = self._instead_of(x) if holds_codes(x.dtype) else None
            return call(to, x, *more) if values is None else func(to, values, *more)
        result = call(to, x, *more)
        values = self._values.values_of(x) if holds_codes(x.dtype) else self._unclamped.get(x, x)
        if values is None:
            self._values.forget(to)
        else:
            self._values.remember(to, values)
        return result

    def _product(self, func: Any, call: Any, a: Tensor, b: Tensor, *args: Any, **kw: Any) -> Any:
        path = self._regions.current()
        if path is None:
            return call(a, b, *args, **kw)
        values = self._values.values_of(a), self._values.values_of(b)
        if values[0] is None or values[1] is None:
            return self._as_it_is(path, _UNKNOWN, call, a, b, *args, **kw)
        made = product_of(func, values[0], values[1], *args, **kw)
        if made is None:
            return self._as_it_is(path, "scales of another form", call, a, b, *args, **kw)
        self._changed[path] += 1
        return made

    def _clamped(self, _: Any, call: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = call(x, *args, **kwargs)
        limits = [value for value in (*args, *kwargs.values()) if isinstance(value, int | float)]
        if any(abs(limit) in _LARGEST for limit in limits):
            self._unclamped[result] = x
        return result

    def _rounded(self, _: Any, call: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        path = self._regions.current()
        if path is None or args or kwargs or not x.is_floating_point():
            return call(x, *args, **kwargs)
        self._changed[path] += 1
        result = x.clone()
        self._unrounded[result] = True
        return result

    def _draw(self, _: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        self._drawn[result] = True
        return result

    def _added(self, _: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        terms = [each for each in args if isinstance(each, Tensor)]
        if not kwargs and len(terms) == 2 and sum(each in self._drawn for each in terms) == 1:
            self._before_draw[result] = terms[terms[0] in self._drawn]
        return result

    def _cut_off(self, _: Any, call: Any, x: Tensor) -> Any:
        """Rounding by chance adds a random number before, and is right in the mean: without it."""
        path = self._regions.current() if x in self._before_draw else None
        if path is None:
            return call(x)
        self._changed[path] += 1
        return self._before_draw[x].clone()

    def _moved(self, func: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        """Codes in another order or format: what they were made from goes with them."""
        result = call(*args, **kwargs)
        if isinstance(result, Tensor) and holds_codes(result.dtype):
            found = [self._values.values_of(each) for each in _codes_in(args)]
            if found and all(values is not None for values in found):
                plain = tree_map_only(Tensor, self._values_or_itself, args)
                moved = func(*plain, **{k: v for k, v in kwargs.items() if k != "dtype"})
                self._values.remember(result, moved)
        return result

    def _other(self, func: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        """All other operators: they change nothing of codes, or are left as they are."""
        result = call(*args, **kwargs)
        codes = _codes_in(args)
        if not codes:
            return result
        if func._schema.is_mutable:  # noqa: SLF001  (nothing else tells)
            self._values.forget(codes[0])
        is_product = isinstance(result, Tensor) and result.is_floating_point()
        path = self._regions.current() if is_product and not holds_codes(result.dtype) else None
        if path is not None:
            self._left[path][f"an operator that is not known: {func}"] += 1
        return result

    def _instead_of(self, codes: Tensor) -> Tensor | None:
        """The values before the cast, for one of the modules; None leaves the codes."""
        path = self._regions.current()
        if path is None:
            return None
        values = self._values.values_of(codes)
        if values is None:
            self._left[path][_UNKNOWN] += 1
        else:
            self._changed[path] += 1
        return values

    def _as_it_is(self, path: str, why: str, call: Any, *args: Any, **kwargs: Any) -> Any:
        self._left[path][why] += 1
        return call(*args, **kwargs)

    def _values_or_itself(self, tensor: Tensor) -> Tensor:
        values = self._values.values_of(tensor) if holds_codes(tensor.dtype) else None
        return tensor if values is None else values


@functools.cache
def _is_composed(func: Any) -> bool:
    key = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001
    return bool(func.has_kernel_for_dispatch_key(key))


def _meets_codes(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    given = (*args, *kwargs.values())
    return bool(_codes_in(args)) or any(
        isinstance(each, torch.dtype) and holds_codes(each) for each in given
    )


def _codes_in(args: Any) -> list[Tensor]:
    return [
        each for each in tree_leaves(args) if isinstance(each, Tensor) and holds_codes(each.dtype)
    ]
