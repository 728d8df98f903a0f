r"""Canonical ids: the same logical tensor has the same id in every layout.

    step0/layers.1.attention.wq:output.0        first output leaf of the first call in a microbatch
    step0/layers.1.attention.wq#1:input.0       first input leaf of the second call
    step0/layers.1.attention.wq:main_grad.weight
    step0/layers.1.attention.wq~no_grad:output.0    of a forward without gradients
    step0/layers.1.attention.wq:grad_output@1.0     by a second backward through it
    step0/layers.1.attention.wq:grad_output@grad.0  asked for by torch.autograd.grad
    step0/a\#1:output.0                         of a module whose name is a#1

What the text of an id uses itself stands behind a backslash in names, and what cannot be seen is
written as in inert(): two ids never have the same text, and every text reads back. An id knows
nothing of ranks and microbatches: those are shards of the tensor it names.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from ttrace.core.quick import HashedOnce, make_quickly
from ttrace.errors import UsageError
from ttrace.text import inert

_T = TypeVar("_T")


class KindGroup(StrEnum):
    """The pass of a step to which a kind belongs, in the order of a step; coarser than a Phase."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


class Kind(StrEnum):
    """What a tensor is to its module, in the order in which a step makes them."""

    PARAM = "param"  # before the step
    INPUT = "input"
    OUTPUT = "output"
    LOSS = "loss"
    GRAD_OUTPUT = "grad_output"
    GRAD_INPUT = "grad_input"
    GRAD = "grad"  # of a parameter, by one microbatch of one rank, before any reduction
    # by all microbatches of one rank, as the reduction gets it, where the framework keeps that
    ACCUMULATED_GRAD = "accumulated_grad"
    REDUCED_GRAD = "reduced_grad"  # after data-parallel ranks were summed, where more sums follow
    MAIN_GRAD = "main_grad"  # after every reduction, before clipping
    GRAD_NORM = "grad_norm"  # by which gradients are clipped
    CLIPPED_GRAD = "clipped_grad"  # as the optimizer gets it, where something clipped
    OPTIMIZER = "optimizer"  # state of the optimizer after its step
    PARAM_AFTER = "param_after"  # after the optimizer step
    BUFFER = "buffer"  # after the step, where it changed

    @property
    def group(self) -> KindGroup:
        return _GROUP_OF[self]

    @property
    def forward(self) -> Kind:
        """The kind of the value that a gradient of an activation belongs to; else itself."""
        return _FORWARD.get(self, self)

    @property
    def is_before_step(self) -> bool:
        """Whether it is read before anything ran: it has no place in the order of execution."""
        return self is Kind.PARAM

    @property
    def is_activation(self) -> bool:
        """Whether the tensor has a batch dimension that ranks and microbatches split."""
        return self in _ACTIVATIONS

    @property
    def is_gradient_of_activation(self) -> bool:
        return self in (Kind.GRAD_OUTPUT, Kind.GRAD_INPUT)

    @property
    def carries_loss_scale(self) -> bool:
        """Whether the factor by which a rank scales its own loss is still in it."""
        return self.is_gradient_of_activation or self is Kind.LOSS or self.is_unreduced

    @property
    def is_unreduced(self) -> bool:
        """Whether it is a gradient of a parameter to which ranks and microbatches still add."""
        return self in (Kind.GRAD, Kind.ACCUMULATED_GRAD)


MASTER = ".master"  # ends the slot of a parameter's copy in full precision

_ACTIVATIONS = frozenset({Kind.INPUT, Kind.OUTPUT, Kind.GRAD_OUTPUT, Kind.GRAD_INPUT})
_FORWARD = {Kind.GRAD_INPUT: Kind.INPUT, Kind.GRAD_OUTPUT: Kind.OUTPUT}
_GROUPS = {
    KindGroup.FORWARD: (Kind.PARAM, Kind.INPUT, Kind.OUTPUT, Kind.LOSS),
    KindGroup.BACKWARD: (Kind.GRAD_OUTPUT, Kind.GRAD_INPUT, Kind.GRAD, Kind.ACCUMULATED_GRAD),
    KindGroup.UPDATE: (
        Kind.REDUCED_GRAD,
        Kind.MAIN_GRAD,
        Kind.GRAD_NORM,
        Kind.CLIPPED_GRAD,
        Kind.OPTIMIZER,
        Kind.PARAM_AFTER,
        Kind.BUFFER,  # by whatever it was changed, it is read when the step is over
    ),
}
_GROUP_OF = {kind: group for group, kinds in _GROUPS.items() for kind in kinds}

_TEXT = (
    r"step(?P<step>[0-9]{{1,18}})/(?P<module>{name}*?)(?P<apart>~no_grad)?(#(?P<call>[0-9]{{1,18}}))?"
    r":(?P<kind>[a-z_]+)(@(?P<asked>grad)?(?P<turn>[0-9]{{0,18}}))?(\.(?P<slot>.+))?"
)
_PLAIN = re.compile(_TEXT.format(name="."), re.DOTALL)  # three times as quick; nearly all are
_WITH_ESCAPES = re.compile(_TEXT.format(name=r"(?:[^\\]|\\.)"), re.DOTALL)
_USUAL = re.compile(r"[A-Za-z0-9_.]*")  # nearly all names, which need no closer look
_OF_MODULES = re.compile(r"[\\#:~]")  # what may follow a module in the text of an id
_OF_SLOTS = re.compile(r"\\")  # nothing follows a slot
_ESCAPED = re.compile(
    r"\\([\\#:~]|[tnr]|x[0-9a-f]{2}|u[0-9a-f]{4}|U(?:000[0-9a-f]|0010)[0-9a-f]{4})"
)
_NAMES_KEPT = 1 << 14  # chosen: every module and slot of a large model
_SHORT = {"t": "\t", "n": "\n", "r": "\r"}


@make_quickly
@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TensorId(HashedOnce):
    """One logical tensor of one training step.

    `apart`: of a call without gradients, which is no microbatch and is counted apart. `turn`: by
    the how manieth backward through the same microbatch. `asked`: by a backward that trains
    nothing, but tells the gradient of something.
    """

    step: int
    module: str
    kind: Kind
    slot: str = ""
    call: int = 0
    apart: bool = False
    turn: int = 0
    asked: bool = False

    __hash__ = HashedOnce.__hash__

    def _key(self) -> tuple[object, ...]:
        named = self.step, self.module, self.kind, self.slot
        return *named, self.call, self.apart, self.turn, self.asked

    def __str__(self) -> str:
        before, after = self.around_module
        return f"{before}{module_text(self.module)}{after}"

    @property
    def around_module(self) -> tuple[str, str]:
        """What stands before and after the module in its text."""
        apart = "~no_grad" if self.apart else ""
        call = f"#{self.call}" if self.call else ""
        turn = f"{'grad' if self.asked else ''}{self.turn or ''}"
        turn = f"@{turn}" if turn else ""
        slot = f".{_escaped(self.slot, _OF_SLOTS)}" if self.slot else ""
        return f"step{self.step}/", f"{apart}{call}:{self.kind.value}{turn}{slot}"

    @property
    def forward(self) -> TensorId:
        """The value that the gradient of an activation belongs to; a value itself."""
        return replace(self, kind=self.kind.forward, turn=0, asked=False)

    @classmethod
    def parse(cls, text: str) -> TensorId:
        has_escapes = "\\" in text
        match = (_WITH_ESCAPES if has_escapes else _PLAIN).fullmatch(text)
        if match is None or match["kind"] not in set(Kind):
            raise UsageError(
                f"{text!r} is not a tensor id: expected step<N>/<module>:<kind>.<slot> with a "
                f"kind of "
                f"{', '.join(Kind)}; `ttrace show TRACE` lists the ids of a trace"
            )
        return cls(
            step=int(match["step"]),
            module=_unescaped(match["module"]) if has_escapes else match["module"],
            kind=Kind(match["kind"]),
            slot=_unescaped(match["slot"] or "") if has_escapes else match["slot"] or "",
            call=int(match["call"] or 0),
            apart=match["apart"] is not None,
            turn=int(match["turn"] or 0),
            asked=match["asked"] is not None,
        )


def roots_of(paths: Iterable[str]) -> frozenset[str]:
    """The models among these modules: those that stand in no other."""
    known = frozenset(paths)
    return frozenset({""}) if "" in known else frozenset(root_of(path, known) for path in known)


@functools.lru_cache(_NAMES_KEPT)
def root_of(module: str, roots: frozenset[str]) -> str:
    """The model that a module stands in; the empty path where no other leads to it."""
    names = module.split(".")
    above = (".".join(names[:end]) for end in range(1, len(names) + 1))
    return next((path for path in above if path in roots), "")


def module_text(path: str) -> str:
    """A module as the text of an id has it."""
    return _escaped(path, _OF_MODULES)


def display_module(path: str) -> str:
    """The root module has an empty path; people need a word for it. Others are as in ids."""
    return module_text(path) or "(model)"


def distinct(named: Iterable[tuple[str, _T]]) -> Iterator[tuple[str, _T]]:
    """The same, where a name that was met before gets a % for each time.

    torch lets two modules have one path: a child that was set as "a.b", and the child b of a.
    """
    known: set[str] = set()
    for name, value in named:
        while name in known:
            name += "%"
        known.add(name)
        yield name, value


@functools.lru_cache(_NAMES_KEPT)
def _escaped(text: str, special: re.Pattern[str]) -> str:
    if _USUAL.fullmatch(text):
        return text
    return inert(special.sub(r"\\\g<0>", text))


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(_meant, text)


def _meant(match: re.Match[str]) -> str:
    said = match[1]
    return chr(int(said[1:], 16)) if len(said) > 1 else _SHORT.get(said, said)


def is_inside(path: str, blocks: Iterable[str]) -> bool:
    """Whether a module is one of these, or in one of these."""
    return any(path == block or path.startswith(f"{block}.") for block in blocks)


def tapped_modules(paths: Iterable[str], inside: Collection[str] | None) -> frozenset[str] | None:
    """Blocks, and everything inside of some of them; None, which is all, where nothing is said."""
    if inside is None:
        return None
    known = list(paths)
    return blocks_of(known) | {path for path in known if is_inside(path, inside)}


def block_of(path: str, blocks: Iterable[str]) -> str:
    """The innermost of these that a module is, or lies in; the model where it is none of them."""
    around = [block for block in blocks if block and is_inside(path, [block])]
    return max(around, key=len, default="")


def blocks_of(paths: Iterable[str]) -> frozenset[str]:
    """The model, and the modules that stand in its outermost lists; without lists, its children."""
    known = [path for path in paths if path]
    numbered = [path for path in known if path.rpartition(".")[2].isdecimal()] or known
    depth = min((path.count(".") for path in numbered), default=0)
    return frozenset({"", *(path for path in numbered if path.count(".") == depth)})
