"""Other groupings of sums: while open, the sums of a run are made in parts and the parts added.

    with Regrouping(noise):
        loss.backward()        # a weight gradient over 16,384 rows is that over 2,048, 8 times

A correct layout differs from the reference by the order of its sums: over rows that other ranks or
microbatches hold, over features that are split. Noise on the values that are added does not show
what the order of a long sum does, which on a CPU grows with its length. So a perturbed reference
makes its sums in other groups as well, operator by operator. Parts are added in the dtype of the
sum, as those of several ranks are. Samples need not be independent: the sums are regrouped, not the
batch. Cuts come from the seed and the number of the call, so that ranks that repeat each other's
work stay equal.

Three kinds of rounding are neither at a module boundary nor in the order of one operator's sum, and
get noise: the products whose sum is in their own dtype, by noise on the weight that the operator
sees, never on the parameter itself; those of an optimizer that works in low precision inside; and
the additions by which backward collects the gradient of a parameter that is used more than once.

Terms of sums over ranks are sent in fewer bits than gradients have, if that is asked:

    FSDP with reduce_dtype=bfloat16     a gradient in float32 is put into a buffer in bfloat16
    a hook that compresses gradients    a bucket is cast, and reduced as it is

Each rank of a candidate rounds a term of its own, and the sum of them is rounded again, while a
reference on one rank rounds once. No module boundary shows that: what a perturbed run sends in two
bytes gets noise of its own dtype.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ttrace.adapters.patching import TellFault
from ttrace.capture.noise import Noise
from ttrace.capture.operator_mode import OperatorMode, are_fake, are_plain, has_compiled
from ttrace.capture.regroup import layers, sums
from ttrace.capture.regroup.codes import MAKE_CODES, CodesMade, Current, coding_of
from ttrace.capture.regroup.draws import FOLLOWED, Draws
from ttrace.capture.regroup.sums import Bounds, SumRule
from ttrace.core.quantised import Quantising

# Chosen: a short sum is made in two parts, as two ranks make it; a long one in up to eight, which
# leave an eighth of what its length does to it, whatever parts the candidate has.
_MOST_PARTS = 8
_PART = 256

_aten = torch.ops.aten
_RULES: dict[Any, SumRule] = {
    _aten.mm: sums.product(1),
    _aten.bmm: sums.product(2),
    _aten.mv: sums.product(1),
    _aten.addmm: sums.added_product(_aten.mm, 1),
    _aten.baddbmm: sums.added_product(_aten.bmm, 2),
    _aten.addmv: sums.added_product(_aten.mv, 1),
    _aten.sum: sums.add_up,
    _aten.mean: sums.average,
    _aten.linalg_vector_norm: sums.vector_norm,
    _aten.nll_loss_forward: sums.nll_loss,
    _aten.index_add: sums.index_add,
    _aten.index_add_: sums.index_add,
    _aten.scatter_add: sums.scatter_add,
    _aten.scatter_add_: sums.scatter_add,
    _aten.index_put: sums.index_put,
    _aten.index_put_: sums.index_put,
    _aten.native_layer_norm_backward: layers.norm_of_rows(2),
    _aten._fused_rms_norm_backward: layers.norm_of_rows(1),  # noqa: SLF001  (it has no other name)
    _aten.native_group_norm_backward: layers.grouped_norm,
    _aten.native_batch_norm: layers.batch_norm,
    _aten.native_batch_norm_backward: layers.batch_norm_backward,
    _aten.convolution: layers.convolution,
    _aten.convolution_backward: layers.convolution_backward,
    _aten.embedding_dense_backward: layers.embedding,
    _aten.mkldnn_rnn_layer_backward: layers.recurrent,
}
_PRODUCTS = frozenset({_aten.mm, _aten.bmm, _aten.mv, _aten.addmm, _aten.baddbmm, _aten.addmv})
_OTHER_FORMS = ("out", "dtype")  # into a tensor that is given, or to another dtype: left alone
_ADDITIONS = frozenset({_aten.add, _aten.add_})
_ROUNDING = MAKE_CODES | FOLLOWED
# They multiply by weights as well, and nothing here regroups what they add up.
_ALSO_WEIGHTED = frozenset(
    {
        _aten.native_layer_norm,
        _aten._fused_rms_norm,  # noqa: SLF001
        _aten.native_group_norm,
        _aten.mkldnn_rnn_layer,
    }
)
# What ranks send in two bytes. By name: torch has the operators of c10d only where it can be
# distributed.
_TWO_BYTES = 2
_SEND: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] = {
    "c10d::allreduce_": lambda args: args[0],
    "c10d::allreduce_coalesced_": lambda args: args[0],
    "c10d::_reduce_scatter_base_": lambda args: [args[1]],
}
_PACK = "fsdp::chunk_cat"


class Regrouping(OperatorMode):
    """Splits the sums of every operator that has a rule; others are left as they are."""

    def __init__(
        self,
        noise: Noise,
        parameter_shapes: Iterable[torch.Size] = (),
        told: TellFault | None = None,
        current: Current = lambda: None,
    ) -> None:
        super().__init__(told)
        self._noise = noise
        self._draws = Draws(noise)
        self._shapes = frozenset(parameter_shapes)
        self.is_updating = False  # whether an optimizer makes its step
        self._calls = self._roundings = 0
        self.regrouped: Counter[str] = Counter()  # how many sums of each operator
        self.faults: Counter[str] = Counter()
        self._rounds_updates = False
        self._codes = CodesMade(current)

    def _operate(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return self._guarded(func, functools.partial(self._perform, func, types), args, kwargs)

    def _perform(
        self, func: Any, types: Sequence[type], call: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """`call` is the operator as a whole, to be called once."""
        # mm(x, w)               w with noise; then mm(x[:, :k], w[:k]) + mm(x[:, k:], w[k:])
        # g1 + g2                with noise on the sum, in backward and of a parameter's shape
        # x.to(float8_e4m3fn)    x with noise that flips some codes
        # floor(x + u)           u in another order, where it was drawn
        # allreduce_([term])     with noise on the term, where it is of two bytes
        is_other = func._overloadname.endswith(_OTHER_FORMS)  # noqa: SLF001  (nothing else tells)
        rule = None if is_other else _RULES.get(func.overloadpacket)
        is_addition = func.overloadpacket in _ADDITIONS
        is_weighted = rule is not None or func.overloadpacket in _ALSO_WEIGHTED
        is_rounding = func.overloadpacket in _ROUNDING
        if _is_sent(func):
            return self._sent(func, call, args, kwargs)
        if are_fake(types) or not (is_weighted or is_addition or is_rounding):
            return call(*args, **kwargs)
        if not are_plain(types):
            return NotImplemented
        if is_rounding:
            args = self._on_grid(func, args, kwargs)
            call = functools.partial(self._drawn, func, call)
        if not (is_weighted or is_addition):
            return call(*args, **kwargs)
        self._calls += 1
        if is_addition:
            total = call(*args, **kwargs)
            return self._collected(total, in_place=func.overloadpacket is _aten.add_)
        if not self.is_updating:
            args = self._weighted(func, args)
        return self._regroup(func, rule, call, args, kwargs)

    def _drawn(self, func: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        """The operator, its random numbers in another order where it rounds by them."""
        known = self._draws.count
        result = self._draws.perform(func, call, *args, **kwargs)
        self._rounds_updates |= self.is_updating and self._draws.count > known
        return result

    def _sent(self, func: Any, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operator, with noise on terms that are sent in fewer bits."""
        self._calls += 1
        self._spoil(_terms_to_send(func, args))
        result = call(*args, **kwargs)
        self._spoil(_terms_packed(func, args, kwargs))
        return result

    def _spoil(self, terms: Sequence[torch.Tensor]) -> None:
        for number, term in enumerate(terms):
            term.copy_(self._noise.on(term, f"term {self._calls} {number}"))

    def _on_grid(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The operator's arguments, with noise on what comes to lie on a grid."""
        is_one = func.overloadpacket in MAKE_CODES
        coding = coding_of(func, args, kwargs) if is_one else None
        if coding is None:
            return args
        self._codes.add(coding.codes)
        if self._draws.holds(args[coding.place]):
            return args
        self._roundings += 1
        found, key = list(args), f"grid {self._roundings}"
        found[coding.place] = self._noise.on_grid(args[coding.place], key, coding.step)
        return tuple(found)

    def _regroup(
        self,
        func: Any,
        rule: SumRule | None,
        call: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if rule is None:
            return call(*args, **kwargs)
        try:
            result = rule(func, self._divide, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  (the operator itself says what is wrong)
            self.faults[f"{func}: {error}"] += 1
            result = None
        if result is None:
            result = call(*args, **kwargs)
        else:
            self.regrouped[str(func.overloadpacket)] += 1
        if self.is_updating and func.overloadpacket in _PRODUCTS and result.dtype.itemsize < 4:
            return self._noise.on(result, f"product {self._calls}")
        return result

    def _weighted(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The operator's arguments, with noise on those that are weights and are only read."""
        found = list(args)
        for number, (argument, value) in enumerate(zip(func._schema.arguments, args, strict=False)):  # noqa: SLF001
            if _is_parameter(value) and not (argument.alias_info and argument.alias_info.is_write):
                found[number] = self.weight(value, f"weight {self._calls} {number}")
        return tuple(found)

    def weight(self, value: torch.Tensor, key: str) -> torch.Tensor:
        """What an operator sees of a weight."""
        return self._noise.on_weight(value, key)

    def _collected(self, total: torch.Tensor, *, in_place: bool) -> torch.Tensor:
        """The sum of two gradients of one parameter, as backward makes it, with noise."""
        in_backward = torch._C._current_graph_task_id() >= 0  # noqa: SLF001  (nothing else tells)
        if not in_backward or total.shape not in self._shapes or self._draws.holds(total):
            return total
        noisy = self._noise.on(total, f"addition {self._calls}")
        return total.copy_(noisy) if in_place else noisy

    def notes(self, roots: Iterable[torch.nn.Module] = ()) -> list[str]:
        """Of sums that were not regrouped."""
        found = [
            f"a sum was left in its order ({count} times): {fault}"
            for fault, count in self.faults.items()
        ]
        if has_compiled(roots):
            found.append(
                "the sums of compiled modules stay in their order: there the noise is that of "
                "module boundaries alone"
            )
        return found

    def quantising(self) -> tuple[Quantising, ...]:
        return self._codes.told()

    def rounds_updates(self) -> bool:
        return self._rounds_updates

    def _divide(self, length: int, terms: int = 0) -> Bounds:
        if length < 2:
            return [(0, length)]
        parts = min(length, max(2, min(_MOST_PARTS, (terms or length) // _PART)))
        draw = random.Random(f"{self._noise.seed} {self._calls}")
        inner = {
            round(length / parts * (part + draw.uniform(-0.25, 0.25))) for part in range(1, parts)
        }
        edges = [0, *sorted(inner - {0, length}), length]
        return list(pairwise(edges))


def _is_parameter(value: Any) -> bool:
    """A parameter, or a view of one: the transposed weight of a linear layer."""
    if not isinstance(value, torch.Tensor):
        return False
    return any(isinstance(each, torch.nn.Parameter) for each in (value, value._base))  # noqa: SLF001


def _is_sent(func: Any) -> bool:
    """Whether the operator sends terms, or makes what is sent."""
    name = func.name()
    return name in _SEND or name == _PACK


def _terms_to_send(func: Any, args: Sequence[Any]) -> list[Tensor]:
    """Tensors that it is about to send; they may be changed in place."""
    find = _SEND.get(func.name())
    return [] if find is None else _narrow(find(args))


def _terms_packed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """What FSDP packed wider gradients into; the same on one rank, where nothing is sent."""
    buffer = kwargs.get("out")
    if func.name() != _PACK or not isinstance(buffer, Tensor):
        return []
    return _narrow([buffer]) if args[0][0].dtype.itemsize > buffer.dtype.itemsize else []


def _narrow(tensors: Sequence[Any]) -> list[Tensor]:
    return [
        each
        for each in tensors
        if isinstance(each, Tensor) and each.is_floating_point()
        if each.dtype.itemsize == _TWO_BYTES
    ]
