"""The questions a framework's adapter answers about this rank, with what plain PyTorch answers.

Enters: the model that a script passes to `attach`. Leaves: coordinates, names, layouts and moments
of one rank. Capture asks and knows no framework; an adapter knows one framework and no stage.

    class MyAdapter(Adapter):
        name = "mine"

        def main_grad(self, parameter):  # only what the framework does otherwise
            return parameter.flat_grad.view_as(parameter)

Every other answer stays that of a plain model whose ranks all hold everything. The package that
holds the class is found by its entry point (adapters.registry); adapters.conformance tests it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ttrace.adapters.leaves import leaves, own_parameters
from ttrace.adapters.quantised import kept_as, plain_values
from ttrace.core.ids import Kind, distinct
from ttrace.core.layout import Layout
from ttrace.errors import UsageError
from ttrace.trace.quantised import Quantised

# Attribute names under which wrappers keep the wrapped one, or all of them.
_WRAPPED_AS = ("optimizer", "_optimizer", "optimizers")
NO_BATCH = -1
Aside = Callable[[str, torch.Tensor, Layout | None], None]  # slot, value, layout
AroundBackward = Callable[[Sequence[torch.Tensor]], AbstractContextManager[None]]
BeforeClip = Callable[[torch.Tensor | None], torch.Tensor | None]
BeforeReduction = Callable[[Iterable[nn.Parameter]], None]


def optimizers_behind(given: Any) -> tuple[Optimizer, ...]:
    """Those that make the steps; empty where it is no optimizer and wraps none.

    AcceleratedOptimizer and LightningOptimizer wrap one; a container lists several, and steps all.
    """
    held = getattr(given, "__dict__", {})
    inner = chain.from_iterable(map(_as_sequence, (held.get(name) for name in _WRAPPED_AS)))
    found = [each for each in inner if isinstance(each, Optimizer)]
    if found:
        return tuple(dict.fromkeys(chain.from_iterable(map(optimizers_behind, found))))
    return (given,) if isinstance(given, Optimizer) else ()


def with_inner(optimizer: Optimizer) -> Iterator[Optimizer]:
    """The optimizer, and what it holds states in.

    ZeroRedundancyOptimizer divides its states among ranks, and holds those of this one in another.
    """
    yield optimizer
    yield from (each for each in vars(optimizer).values() if isinstance(each, Optimizer))


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Where this rank stands: its coordinates on the mesh axes and among data-parallel ranks."""

    rank: int
    world_size: int
    axes: dict[str, tuple[int, int]]  # axis -> (my index, size)
    batch: tuple[int, int] | None  # (my index, count), None when the framework does not say
    # Over how many ranks gradients are averaged, 1 where they are summed; None: it does not say.
    loss_parts: int | None = None
    vocabulary: tuple[str, ...] = ()  # modules with a row for each token, padded as layouts need


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter under its canonical name.

    `users` are classes of modules that use it, where this rank does not hold them all.
    `computes`: the tensor itself is what modules compute with, so that its gradient arrives there.
    """

    module: str
    name: str
    tensor: nn.Parameter
    users: tuple[type, ...] = ()
    computes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTokens:
    """Rows of a tensor that belong to the samples of one rank, and where they stand among them.

    `layout` is that of a dense tensor with a place for each of them; other places are zero.
    """

    origin: int  # the rank whose samples they are
    rows: torch.Tensor  # which rows
    places: torch.Tensor  # where in the dense tensor, its leading dims flattened
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundarySpec:
    """Where a tensor at a module's boundary belongs, as far as the framework knows.

    `dims` is the order of dims to record in, where layouts of the model differ in it. `layout` may
    then give the local tensor another shape of as many elements: it is recorded in that.
    """

    slot: str
    dims: tuple[int, ...] = ()
    layout: Layout | None = None
    batch_dim: int | None = None  # of the samples; NO_BATCH where there is none, None: not known
    # The tensor's first dim, where tokens were sent between ranks.
    rows: tuple[SentTokens, ...] = ()


@lru_cache
def somewhere(slot: str) -> BoundarySpec:
    """Of a tensor of which no more is known: most are, and one value does for all of a slot."""
    return BoundarySpec(slot=slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPart:
    """A part of something that belongs to a parameter, as this rank holds it."""

    slot: str
    tensor: torch.Tensor
    layout: Layout | None = None


AfterReduction = Callable[[Sequence[Parameter]], None]


class Topology:
    """Where this rank and its part of the model stand among the others."""

    def coordinates(self) -> Coordinates:
        """This rank's coordinates.

        Default: the rank that torch.distributed says, on no axis; a process alone has the batch.
        """
        grouped = dist.is_available() and dist.is_initialized()
        rank, world_size = (dist.get_rank(), dist.get_world_size()) if grouped else (0, 1)
        batch = (0, 1) if world_size == 1 else None
        return Coordinates(rank=rank, world_size=world_size, axes={}, batch=batch)

    def precision(self) -> Mapping[str, str]:
        """Dtypes that the framework was told to use, by facts of core/record.py. Default: none."""
        return {}

    def edges(self, module: nn.Module) -> tuple[bool, bool]:
        """Whether its inputs, and its outputs, are those of the module of its path.

        A pipeline cuts the model: only its first stage gets the model's inputs. Default: both are.
        """
        return True, True

    def microbatch(self) -> int | None:
        """The microbatch of this forward. Default: None, each call of a root is the next one."""
        return None

    def backward_microbatch(self) -> int | None:
        """The microbatch of this backward. Default: None, the gradients that arrive tell it."""
        return None

    def is_weight_pass(self) -> bool:
        """Whether backward goes through activations again, for weights alone. Default: never."""
        return False

    def is_rehearsal(self) -> bool:
        """Whether modules run only for the framework to learn shapes. Default: they never do."""
        return False

    def loss_layout(self) -> Layout | None:
        """The layout of a microbatch's loss: a term of a sum over some axis. Default: not known."""
        return None


class Naming:
    """What modules are called, so that the same one has the same name in every layout."""

    roots: Sequence[nn.Module]

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Canonical path and module of everything whose calls are to be recorded, root first.

        A rank that holds several chunks of a model has several roots, all with an empty path.
        Default: torch's own names; a module that is used twice goes by its first.
        """
        seen: set[nn.Module] = set()
        for root in self.roots:
            yield from distinct(root.named_modules(memo=seen))

    def written_class(self, module: nn.Module) -> type:
        """The class a person wrote. Default: the module's own; frameworks may put others before."""
        return type(module)


class Boundaries:
    """How the tensors that pass between modules lie in those of the whole model."""

    def boundary(
        self, module: nn.Module, kind: Kind, slot: str, tensor: torch.Tensor
    ) -> BoundarySpec | None:
        """Where an input, an output, or the gradient of one belongs; None: leave it out.

        Default: its slot and nothing more; alignment infers the layout from shapes.
        """
        return somewhere(slot)

    def to_local(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Layout | None]:
        """The plain local tensor, sharing its memory, and its layout if the tensor knows it.

        Default: the tensor itself, or what its codes stand for, outside autograd, without a layout.
        """
        return plain_values(tensor).detach(), None

    def quantised(self, tensor: torch.Tensor) -> Quantised | None:
        """The codes and scales that the local tensor is kept as.

        Default: those of the classes that adapters/quantised.py knows.
        """
        return kept_as(tensor)

    def wrap_like(self, local: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The inverse of to_local: a tensor of the kind of `like` around new local values.

        Default: the local tensor.
        """
        return local

    def reduced(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with its pending reductions done: a collective of all ranks that hold it.

        Default: the tensor, of which none is pending.
        """
        return tensor

    def inherit(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        """`tensor` took the place of `source`: what is known of its layout goes on to hold.

        Default: nothing, since no tensor knows its layout.
        """
        return


class Parameters(Naming):
    """What a rank holds of each parameter, of its gradients and of its optimizer state."""

    notes: list[str]
    _behind: Sequence[Optimizer] = ()  # the optimizers that make the updates

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter once, tied ones under their first name. Default: those of `modules`."""
        seen: set[int] = set()
        for path, module in self.modules():
            for name, parameter in own_parameters(module):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield Parameter(module=path, name=name, tensor=parameter)

    def main_grad(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """The gradient that the optimizer will use. Default: `parameter.grad`."""
        return parameter.grad

    def parts(self, kind: Kind, parameter: Parameter) -> Iterator[ParameterPart]:
        """What this rank holds of a parameter, one of its gradients, or its state.

        Default: all of each; the state is that of the optimizers, as torch keeps it.
        """
        tensor = parameter.tensor
        if kind is Kind.OPTIMIZER:
            for optimizer in chain.from_iterable(map(with_inner, self._behind)):
                # Not by index: asking a defaultdict would make a state.
                for slot, state in leaves(optimizer.state.get(tensor, {}), parameter.name):
                    yield ParameterPart(slot=slot, tensor=state)
            return
        is_gradient = kind in (Kind.REDUCED_GRAD, Kind.MAIN_GRAD, Kind.CLIPPED_GRAD)
        value = self.main_grad(tensor) if is_gradient else tensor
        if value is not None:
            yield ParameterPart(slot=parameter.name, tensor=value)

    def updated(self, parameter: nn.Parameter) -> torch.Tensor:
        """The tensor in the optimizer's groups that stands for it. Default: the parameter."""
        return parameter

    def is_updated_later(self, parameter: nn.Parameter) -> bool:
        """Whether its optimizer, which begins a step, leaves it to one that follows.

        Frameworks give an optimizer one group after the other. Default: it never does.
        """
        return False

    def filled(self, kind: Kind, parameter: Parameter) -> None:
        """Other values were written into its parts: they go where copies of them stand.

        Default: there are no copies.
        """
        return

    def local_gradient_layout(self, module: str, name: str) -> Layout | None:
        """The layout of a parameter's gradient before any reduction. Default: not known."""
        return None

    def replicas(self, module: str, tensor: torch.Tensor) -> Sequence[int] | None:
        """Ranks among which the same part of a module's parameter or buffer is the same values.

        Default: nobody says so. Ranks that hold parts which look alike may hold different ones.
        """
        return None

    def optimizers(self, given: Sequence[Any]) -> Sequence[Optimizer]:
        """The torch optimizers behind what a script gave as its optimizer.

        Default: the given, without what wraps them; of others the notes say that they are not seen.
        """
        found = [(type(each).__qualname__, optimizers_behind(each)) for each in given]
        self.notes += [
            f"{kind} is no torch.optim.Optimizer and wraps none: what its step does is seen only "
            "by the parameters after it"
            for kind, behind in found
            if not behind
        ]
        self._behind = tuple(chain.from_iterable(behind for _, behind in found))
        return self._behind


class Watch:
    """Moments of a step that only the framework knows; each is watched while a context is open.

    A context puts everything that it replaced back as it was, also after an exception
    (adapters.patching does). Default of each: there is no such moment.
    """

    def tracking(self) -> AbstractContextManager[None]:
        """Held while a step is traced, for adapters that must watch their framework."""
        return nullcontext()

    def watch_backward(self, around: AroundBackward) -> AbstractContextManager[None]:
        """Holds `around(losses)` while the framework runs backward past torch.autograd.backward."""
        return nullcontext()

    def watch_losses(self, aside: Aside) -> AbstractContextManager[None]:
        """Calls `aside` for losses that the module which runs now makes but does not return."""
        return nullcontext()

    def watch_accumulation(self, before: BeforeReduction) -> AbstractContextManager[None]:
        """Calls `before(parameters)` when their gradients, accumulated, are about to be reduced."""
        return nullcontext()

    def watch_reduction(self, after: AfterReduction) -> AbstractContextManager[None]:
        """Calls `after` once gradients are summed over data-parallel ranks, where sums follow."""
        return nullcontext()

    def watch_clipping(self, before: BeforeClip) -> AbstractContextManager[None]:
        """Calls `before(norm)` when gradients are clipped by code of the framework's own."""
        return nullcontext()


class Adapter(Topology, Boundaries, Parameters, Watch):
    """Answers for one framework; by itself for plain modules, of which each rank holds all.

    `roots` are the modules of this rank, in order. `notes` are sentences that a person should read
    of this rank before any step; whoever makes or chooses the adapter adds to them.
    """

    name: str

    def __init__(self, model: nn.Module | Sequence[nn.Module]) -> None:
        self.roots = [model] if isinstance(model, nn.Module) else list(model)
        self.notes = []
        if not self.roots or not all(isinstance(root, nn.Module) for root in self.roots):
            raise UsageError(f"an adapter needs torch.nn.Modules, found {type(model).__name__}")

    def has_gradients(self) -> bool:
        """Whether gradients wait for an update. Default: some main gradient is not zero here."""
        found = (self.main_grad(parameter.tensor) for parameter in self.parameters())
        return any(g is not None and bool(self.to_local(g)[0].any()) for g in found)
