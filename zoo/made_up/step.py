"""What one training step of a transformer records, as plain data: ids, shapes and splits.

Enters: how many layers. Leaves: every tensor of the step in the order in which it is made, as the
demo's model records it under DDP and tensor parallelism with a split sequence. No values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ttrace.core.ids import Kind, TensorId

WIDTH, INNER, TOKENS, VOCABULARY = 128, 256, 128, 256  # chosen: a shard just has a fingerprint
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One logical tensor. `shape` has no samples: activations have them before it.

    `split` is the dim of `shape` that tensor-parallel ranks split; `is_partial`: they hold terms of
    it. `knows_place`: ranks say where their shard sits, or it is found by its shape.
    """

    id: TensorId
    shape: Shape
    split: int | None = None
    is_partial: bool = False
    knows_place: bool = True
    same_as: TensorId | None = None


@dataclass(frozen=True, slots=True)
class _Linear:
    path: str
    shape: Shape  # of its weight
    split: int  # 0: its output is split, 1: its input
    has_bias: bool = False


@dataclass(slots=True)
class _Parameters:
    """Those of a step, in the order of the model."""

    known: list[tuple[str, str, Shape, int | None]] = field(default_factory=list)

    def add(self, path: str, shape: Shape, split: int | None, slot: str = "weight") -> None:
        self.known.append((path, slot, shape, split))

    def of(self, kind: Kind, *ends: str) -> Iterator[Tensor]:
        for path, slot, shape, split in self.known:
            for end in ends or ("",):
                id_ = _id(path, kind, f"{slot}{end}")
                if end == ".step":
                    yield Tensor(id=id_, shape=(), knows_place=False)
                else:
                    yield Tensor(id=id_, shape=shape, split=split)


def step(layers: int) -> Iterator[Tensor]:
    """All tensors of a step."""
    parameters = _parameters(layers)
    yield from parameters.of(Kind.PARAM)
    yield Tensor(id=_id("", Kind.INPUT), shape=(TOKENS,), knows_place=False)
    yield _hidden("tok_embeddings", Kind.OUTPUT)
    for number in range(layers):
        yield from _forward(f"layers.{number}", _before(number))
    yield from _around("norm", Kind.INPUT, _id(f"layers.{layers - 1}", Kind.OUTPUT))
    yield Tensor(id=_id("output", Kind.OUTPUT), shape=(TOKENS, VOCABULARY))
    yield Tensor(id=_id("", Kind.LOSS, ""), shape=(), knows_place=False)
    yield Tensor(id=_id("output", Kind.GRAD_OUTPUT), shape=(TOKENS, VOCABULARY))
    yield from _around("norm", Kind.GRAD_OUTPUT, None)
    for number in reversed(range(layers)):
        yield from _backward(f"layers.{number}")
    yield _hidden("tok_embeddings", Kind.GRAD_OUTPUT)
    yield from parameters.of(Kind.GRAD)
    yield from parameters.of(Kind.MAIN_GRAD)
    yield Tensor(id=_id("", Kind.GRAD_NORM, ""), shape=(), knows_place=False)
    yield from parameters.of(Kind.CLIPPED_GRAD)
    yield from parameters.of(Kind.OPTIMIZER, ".step", ".exp_avg", ".exp_avg_sq")
    yield from parameters.of(Kind.PARAM_AFTER)


def stages_of(id_: TensorId, layers: int, pp: int) -> Sequence[int]:
    """The pipeline stages that have a tensor."""
    block = id_.module.split(".")
    if block[0] == "layers":
        return (int(block[1]) * pp // layers,)
    if id_.kind is Kind.GRAD_NORM:
        return range(pp)
    is_first = block[0] == "tok_embeddings" or (id_.kind is Kind.INPUT and not id_.module)
    return (0 if is_first else pp - 1,)


def modules(layers: int) -> tuple[str, ...]:
    """Their paths, the model first."""
    inside = ("", ".attention_norm", ".attention", ".ffn_norm", ".feed_forward")
    blocks = [f"layers.{number}" for number in range(layers)]
    names = [f"{block}{name}" for block in blocks for name in inside]
    names += [linear.path for block in blocks for linear in _linears(block)]
    return ("", "tok_embeddings", *names, "norm", "output")


def _parameters(layers: int) -> _Parameters:
    found = _Parameters()
    found.add("tok_embeddings", (VOCABULARY, WIDTH), 0)
    for number in range(layers):
        block = f"layers.{number}"
        found.add(f"{block}.attention_norm", (WIDTH,), None)
        found.add(f"{block}.ffn_norm", (WIDTH,), None)
        for linear in _linears(block):
            found.add(linear.path, linear.shape, linear.split)
            if linear.has_bias:
                found.add(linear.path, (WIDTH,), None, "bias")
    found.add("norm", (WIDTH,), None)
    found.add("output", (VOCABULARY, WIDTH), 0)
    return found


def _linears(block: str) -> Sequence[_Linear]:
    attention, feed_forward = f"{block}.attention", f"{block}.feed_forward"
    return (
        *(_Linear(f"{attention}.{name}", (WIDTH, WIDTH), 0) for name in ("wq", "wk", "wv")),
        _Linear(f"{attention}.wo", (WIDTH, WIDTH), 1, has_bias=True),
        *(_Linear(f"{feed_forward}.{name}", (INNER, WIDTH), 0) for name in ("w1", "w3")),
        _Linear(f"{feed_forward}.w2", (WIDTH, INNER), 1),
    )


def _forward(block: str, before: TensorId) -> Iterator[Tensor]:
    attention, feed_forward = f"{block}.attention", f"{block}.feed_forward"
    yield _hidden(block, Kind.INPUT, same_as=before, knows_place=False)
    yield from _around(f"{block}.attention_norm", Kind.INPUT, None)
    yield from _of_columns(attention, ("wq", "wk", "wv"), WIDTH, f"{block}.attention_norm")
    yield from _of_rows(attention, "wo", WIDTH)
    yield from _around(f"{block}.ffn_norm", Kind.INPUT, None)
    yield from _of_columns(feed_forward, ("w1", "w3"), INNER, f"{block}.ffn_norm")
    yield from _of_rows(feed_forward, "w2", INNER)
    yield _hidden(block, Kind.OUTPUT, knows_place=False)


def _of_columns(parent: str, names: Sequence[str], width: int, norm: str) -> Iterator[Tensor]:
    yield _hidden(parent, Kind.INPUT, same_as=_id(norm, Kind.OUTPUT))
    gathered = _id(f"{parent}.{names[0]}", Kind.INPUT)
    for name in names:
        path = f"{parent}.{name}"
        same_as = None if name == names[0] else gathered
        yield Tensor(id=_id(path, Kind.INPUT), shape=(TOKENS, WIDTH), same_as=same_as)
        yield Tensor(id=_id(path, Kind.OUTPUT), shape=(TOKENS, width), split=1)


def _of_rows(parent: str, name: str, width: int) -> Iterator[Tensor]:
    path = f"{parent}.{name}"
    yield Tensor(id=_id(path, Kind.INPUT), shape=(TOKENS, width), split=1, knows_place=False)
    yield _hidden(path, Kind.OUTPUT)
    yield _hidden(parent, Kind.OUTPUT, same_as=_id(path, Kind.OUTPUT))


def _backward(block: str) -> Iterator[Tensor]:
    attention, feed_forward = f"{block}.attention", f"{block}.feed_forward"
    yield _hidden(block, Kind.GRAD_OUTPUT)
    yield from _back_of_rows(feed_forward, "w2", INNER)
    yield from _back_of_columns(feed_forward, ("w3", "w1"), INNER)
    yield from _around(f"{block}.ffn_norm", Kind.GRAD_OUTPUT, None)
    yield from _back_of_rows(attention, "wo", WIDTH)
    yield from _back_of_columns(attention, ("wv", "wk", "wq"), WIDTH)
    yield from _around(f"{block}.attention_norm", Kind.GRAD_OUTPUT, None)
    yield _hidden(block, Kind.GRAD_INPUT)


def _back_of_rows(parent: str, name: str, width: int) -> Iterator[Tensor]:
    yield _hidden(f"{parent}.{name}", Kind.GRAD_OUTPUT)
    yield _hidden(parent, Kind.GRAD_OUTPUT, same_as=_id(f"{parent}.{name}", Kind.GRAD_OUTPUT))
    yield Tensor(id=_id(f"{parent}.{name}", Kind.GRAD_INPUT), shape=(TOKENS, width), split=1)


def _back_of_columns(parent: str, names: Sequence[str], width: int) -> Iterator[Tensor]:
    for name in names:
        yield Tensor(id=_id(f"{parent}.{name}", Kind.GRAD_OUTPUT), shape=(TOKENS, width), split=1)
    last = _id(f"{parent}.{names[-1]}", Kind.GRAD_INPUT)
    yield Tensor(id=last, shape=(TOKENS, WIDTH), is_partial=True)


def _around(path: str, kind: Kind, same_as: TensorId | None) -> Iterator[Tensor]:
    """Into and out of a module that every rank calls with its own tokens."""
    into, out = (Kind.INPUT, Kind.OUTPUT) if kind is Kind.INPUT else (kind, Kind.GRAD_INPUT)
    yield _hidden(path, into, same_as=same_as, knows_place=kind is not Kind.INPUT)
    yield _hidden(path, out)


def _hidden(
    path: str, kind: Kind, *, same_as: TensorId | None = None, knows_place: bool = True
) -> Tensor:
    """Activations of the stream between blocks: each rank has its own tokens."""
    return Tensor(
        id=_id(path, kind),
        shape=(TOKENS, WIDTH),
        split=0,
        same_as=same_as,
        knows_place=knows_place,
    )


def _before(number: int) -> TensorId:
    return _id(f"layers.{number - 1}" if number else "tok_embeddings", Kind.OUTPUT)


def _id(path: str, kind: Kind, slot: str = "0") -> TensorId:
    return TensorId(step=0, module=path, kind=kind, slot=slot)
