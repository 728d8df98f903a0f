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
import threading
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from ttrace.adapters.base import Adapter
from ttrace.adapters.patching import TellFault
from ttrace.capture.guard import Guard, module_hook
from ttrace.capture.operator_mode import OperatorMode, are_fake, are_plain
from ttrace.core.formats import format_of
from ttrace.core.quantised import Undone
from ttrace.trace.dtypes import dtype_name

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


class _Running(NamedTuple):
    path: str
    first: int  # number of a node that is made next


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.running: list[_Running] = []


class Regions:
    """Knows which module runs now, forward or backward, of those that match one of these patterns.

    Forward is what lies between two hooks. Backward runs without its module: but torch numbers the
    nodes of its graph as it makes them, so the nodes of a module are those whose numbers were given
    while it ran, and backward says which node it is at.
    """

    def __init__(self, adapter: Adapter, patterns: Sequence[str], guard: Guard) -> None:
        self._here = _OfThread()
        # Of calls that have ended, which is the order of their ends.
        self._ends: list[int] = []
        self._ended: list[_Running] = []
        for path, module in adapter.modules():
            if any(fnmatchcase(path, pattern) for pattern in patterns):
                self._watch(path, module, guard)

    def current(self) -> str | None:
        """The innermost of these modules that runs now, on this thread; None outside of all."""
        if running := self._here.running:
            return running[-1].path
        node: Any = torch._C._current_autograd_node()  # noqa: SLF001  (no public way to ask)
        return None if node is None else self._of_node(node._sequence_nr())  # noqa: SLF001

    def _of_node(self, number: int) -> str | None:
        """Of the calls around it, the one that ended first."""
        begin = bisect_right(self._ends, number)
        around = (each for each in self._ended[begin:] if each.first <= number)
        return next((each.path for each in around), None)

    def _watch(self, path: str, module: nn.Module, guard: Guard) -> None:
        def enter(*_: Any) -> None:
            self._here.running.append(_Running(path, _next_node()))

        def leave(*_: Any) -> None:
            if running := self._here.running:
                self._ended.append(running.pop())
                self._ends.append(_next_node())

        def hook(work: Any) -> Any:
            return module_hook(guard, path, work)

        put = guard.handles.add
        put(module.register_forward_pre_hook(hook(enter), prepend=True))
        put(module.register_forward_hook(hook(leave), always_call=True))


def _next_node() -> int:
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]  # noqa: SLF001


def holds_codes(dtype: torch.dtype) -> bool:
    """Floating numbers of one byte; a dtype without a mantissa is for scales, which are exact."""
    if not (dtype.is_floating_point and dtype.itemsize == 1):
        return False
    known = format_of(dtype_name(dtype))
    return known is None or known.mantissa_bits > 0


class _Kept(NamedTuple):
    storage: StorageWeakRef  # keeps its address from being used for another storage
    flat: Tensor


class ValuesBefore:
    """Finds the values from which codes of one byte were made, for as long as the codes live.

        remember(x.to(torch.float8_e4m3fn), x)
        values_of(codes.T[:8])      the same part of x, transposed

    Kept by storage, so that every view of codes finds its part, by whomever it was made: an element
    of a storage of one-byte codes has a place, and its value lies in the same place of a flat
    tensor.
    """

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}
        self._many = 64  # chosen: how many are kept before the dead are looked for

    def remember(self, codes: Tensor, values: Tensor) -> None:
        """A copy is kept: whoever quantises may use the room of `values` again."""
        storage = codes.untyped_storage()
        place = StorageWeakRef(storage)
        known = self._kept.get(place.cdata)
        if known is None or known.flat.dtype != values.dtype:
            known = _Kept(place, self._flat(codes, values.dtype, known))
            self._kept[place.cdata] = known
        _part(known.flat, codes).copy_(values)
        self._forget_dead()

    def values_of(self, codes: Tensor) -> Tensor | None:
        """In the shape and strides of the codes; None where they were made by nothing seen."""
        known = self._kept.get(StorageWeakRef(codes.untyped_storage()).cdata)
        return None if known is None else _part(known.flat, codes)

    def forget(self, written: Tensor) -> None:
        """Somebody wrote other codes into this storage."""
        if self._kept:
            self._kept.pop(StorageWeakRef(written.untyped_storage()).cdata, None)

    def _flat(self, codes: Tensor, dtype: torch.dtype, known: _Kept | None) -> Tensor:
        if known is not None:
            return known.flat.to(dtype)
        storage = codes.untyped_storage()
        if storage.nbytes() == codes.numel():
            return torch.empty(storage.nbytes(), dtype=dtype, device=codes.device)
        whole = torch.empty(0, dtype=codes.dtype, device=codes.device)
        return whole.set_(storage, 0, (storage.nbytes(),), (1,)).to(
            dtype
        )  # what nobody told of is kept

    def _forget_dead(self) -> None:
        if len(self._kept) < self._many:
            return
        alive = {key: kept for key, kept in self._kept.items() if not kept.storage.expired()}
        self._kept, self._many = alive, max(64, 2 * len(alive))


def _part(flat: Tensor, codes: Tensor) -> Tensor:
    return flat.as_strided(codes.size(), codes.stride(), codes.storage_offset())


def product_of(func: Any, a: Tensor, b: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
    """What torch._scaled_mm returns of values in the place of codes: in fp32, rounded to its dtype.

    None where scales lie in a form not known here.
    """
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
