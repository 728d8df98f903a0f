"""Megatron-Core: coordinates, canonical names, layouts and optimizers, with nothing to annotate.

Imported only when a model is Megatron's. Everything is read from parallel_state, the classes of
modules, the config and the attributes of parameters; what they do not say is inferred at alignment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import megatron.core
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.utils import get_model_config
from torch import nn
from torch.optim import Optimizer

from ttrace.adapters.base import (
    AfterReduction,
    AroundBackward,
    Aside,
    BeforeClip,
    BeforeReduction,
    BoundarySpec,
    Coordinates,
    Parameter,
    ParameterPart,
)
from ttrace.adapters.leaves import leaves
from ttrace.adapters.megatron.activations import Activations
from ttrace.adapters.megatron.experts import Dispatches
from ttrace.adapters.megatron.layouts import Ranks, parameter_layout, sections_of
from ttrace.adapters.megatron.losses import watch_losses
from ttrace.adapters.megatron.optimizer import (
    Optimizers,
    box_layout,
    flat_boxes,
    watch_accumulation,
    watch_clipping,
    watch_reduction,
)
from ttrace.adapters.megatron.paths import (
    expert_modules,
    is_tied,
    parameter_name,
    tied_users,
    unwrapped,
    vocabulary_modules,
    walk,
    with_global_number,
)
from ttrace.adapters.megatron.schedules import watch_backward
from ttrace.adapters.megatron.sharding import disagreements, layout_told, sharded_layouts
from ttrace.core.ids import MASTER, Kind
from ttrace.core.layout import Layout
from ttrace.errors import UsageError

OLDEST = (0, 16)  # the first whose MoE layers dispatch in the steps that are watched


class MegatronAdapter:
    """Answers for the chunks of a Megatron model on this rank."""

    name = "megatron"

    def __init__(self, chunks: Sequence[nn.Module]) -> None:
        _require_version(megatron.core.__version__)
        self._chunks = [unwrapped(chunk) for chunk in chunks]
        self._config = get_model_config(chunks[0])
        self._ranks = _ranks(self._config)
        self._modules = list(walk(self._chunks))
        self._sections = sections_of(self._modules)
        self._experts = expert_modules(self._modules)
        self._optimizers: Optimizers | None = None
        self._late = False  # whether an optimizer step left parameters to be gathered later
        self._of_chunk: dict[int, list[Parameter]] = {id(chunk): [] for chunk in self._chunks}
        self._parameters = list(self._find_parameters())
        told = [sharded_layouts(chunk) for chunk in self._chunks]
        sharded = {at: layout for layouts, _ in told for at, layout in layouts.items()}
        self._notes = [problem for _, problem in told if problem]
        self._notes += disagreements(self._parameters, sharded)
        self._layouts = {
            id(p.tensor): layout or layout_told(p.tensor, sharded) for p, layout in self._parameters
        }
        self._by_name = {(p.module, p.name): p.tensor for p, _ in self._parameters}
        self._dispatches = Dispatches(self._ranks.tp, self._ranks.cp)
        self._activations = Activations(
            ranks=self._ranks,
            roots={id(chunk): chunk for chunk in self._chunks},
            paths={id(module): path for path, module in self._modules},
            sections=self._sections,
            parameters=self._layouts,
            dispatches=self._dispatches,
            experts=self._experts,
        )

    def coordinates(self) -> Coordinates:
        axes = {
            "tp": self._ranks.tp,
            "pp": (_rank("pipeline_model"), _size("pipeline_model")),
            "cp": self._ranks.cp,
            "dp": (_rank("data"), _size("data")),
        }
        if (end := self._embedding_end()) is not None:
            axes["pp.embedding"] = (end, 2)
        return Coordinates(
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            axes={axis: place for axis, place in axes.items() if place[1] > 1},
            batch=(_rank("data"), _size("data")),
            loss_parts=1
            if self._config.calculate_per_token_loss
            else _size("data") * _size("context"),
            vocabulary=vocabulary_modules(self._modules),
        )

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        yield from self._modules

    def edges(self, module: nn.Module) -> tuple[bool, bool]:
        return True, not self._activations.hands_on(module)

    def microbatch(self) -> int | None:
        return None

    def is_rehearsal(self) -> bool:
        return False

    def written_class(self, module: nn.Module) -> type:
        return type(module)

    def parameters(self) -> Iterator[Parameter]:
        yield from (parameter for parameter, _ in self._parameters)

    def main_grad(self, parameter: nn.Parameter) -> torch.Tensor | None:
        found = getattr(parameter, "main_grad", None)
        return parameter.grad if found is None else found

    def parts(self, kind: Kind, parameter: Parameter) -> Iterator[ParameterPart]:
        tensor, name = parameter.tensor, parameter.name
        main = None if self._optimizers is None else self._optimizers.main(tensor)
        if kind is Kind.OPTIMIZER:
            self._late = self._optimizers is not None and self._optimizers.gathers_late
            state = {} if self._optimizers is None else self._optimizers.state(tensor)
            for slot, value in leaves(state, name):
                yield from self._owned_parts(slot, value, tensor)
        elif kind in (Kind.REDUCED_GRAD, Kind.MAIN_GRAD, Kind.CLIPPED_GRAD):
            if (gradient := self._gradient(kind, tensor, main)) is not None:
                is_first = kind is Kind.REDUCED_GRAD
                axes = self._axes_summed_last(parameter.module, name) if is_first else ()
                yield from self._owned_parts(name, gradient, tensor, axes)
        else:
            if self._late:
                yield from self._owned_parts(name, tensor.detach(), tensor)
            else:
                yield ParameterPart(slot=name, tensor=tensor, layout=self._layouts[id(tensor)])
            if main is not None and main.dtype != tensor.dtype:
                yield from self._owned_parts(f"{name}{MASTER}", main, tensor)

    def _gradient(
        self, kind: Kind, tensor: nn.Parameter, main: torch.Tensor | None
    ) -> torch.Tensor | None:
        """What the optimizer made of it counts, where it has taken it over already."""
        taken = None if main is None else main.grad
        if kind is Kind.CLIPPED_GRAD or (kind is Kind.MAIN_GRAD and taken is not None):
            return taken
        return self.main_grad(tensor)

    def _owned_parts(
        self, slot: str, value: torch.Tensor, parameter: nn.Parameter, partial: Sequence[str] = ()
    ) -> Iterator[ParameterPart]:
        """What of the value counts on this rank: all, or the range that its optimizer owns."""
        known = self._layouts[id(parameter)]
        base = (known or Layout.full(parameter.shape)).summed_over(*partial)
        owned = None if self._optimizers is None else self._optimizers.range_of(parameter)
        if value.dim() == 0 and parameter.dim() > 0:
            yield ParameterPart(slot=slot, tensor=value)  # a count of steps
        elif owned is None:
            yield ParameterPart(slot=slot, tensor=value, layout=base if known or partial else None)
        else:
            start, stop = owned
            flat = value.detach().reshape(-1)
            flat = flat[start:stop] if value.shape == parameter.shape else flat
            at = 0
            for box in flat_boxes(parameter.shape, start, stop):
                layout = box_layout(base, box)
                size = torch.Size(stop - start for start, stop in box).numel()
                part = flat[at : at + size].reshape(layout.local_shape)
                yield ParameterPart(slot=slot, tensor=part, layout=layout)
                at += size

    def local_gradient_layout(self, module: str, name: str) -> Layout | None:
        parameter = self._by_name[module, name]
        layout = self._layouts[id(parameter)]
        partial = ["cp"] if self._ranks.cp[1] > 1 else []
        partial += self._axes_summed_last(module, name)
        if not partial:
            return layout
        return (layout or Layout.full(parameter.shape)).summed_over(*partial)

    def _axes_summed_last(self, module: str, name: str) -> list[str]:
        """Over which a gradient is summed when it is already summed over data and context."""
        layout = self._layouts[id(self._by_name[module, name])]
        axes = []
        if layout is None and self._ranks.tp[1] > 1 and self._ranks.sequence_parallel:
            axes.append("tp")
        if (module, name) == parameter_name(self._chunks[0], "output_layer", "weight"):
            axes += ["pp.embedding"] if self._embedding_end() is not None else []
        return axes

    def to_local(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Layout | None]:
        return tensor.detach(), None

    def optimizers(self, given: Sequence[Any]) -> Sequence[Optimizer]:
        self._optimizers = Optimizers(given) if given else None
        return [] if self._optimizers is None else self._optimizers.inner()

    def watch_clipping(self, before: BeforeClip) -> AbstractContextManager[None]:
        return watch_clipping(before)

    def watch_backward(self, around: AroundBackward) -> AbstractContextManager[None]:
        return watch_backward(around)

    def watch_accumulation(self, before: BeforeReduction) -> AbstractContextManager[None]:
        return watch_accumulation(before)

    def watch_reduction(self, after: AfterReduction) -> AbstractContextManager[None]:
        return watch_reduction(lambda chunk: after(self._of_chunk[id(unwrapped(chunk))]))

    def watch_losses(self, aside: Aside) -> AbstractContextManager[None]:
        per_token = bool(self._config.calculate_per_token_loss)
        return watch_losses(self._ranks, aside, per_token=per_token)

    def boundary(
        self, module: nn.Module, kind: Kind, slot: str, tensor: torch.Tensor
    ) -> BoundarySpec | None:
        return self._activations.boundary(module, kind, slot, tensor)

    def loss_layout(self) -> Layout | None:
        """Each context parallel rank has the loss of its own tokens."""
        return Layout.full(()).summed_over("cp") if self._ranks.cp[1] > 1 else None

    def reduced(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def wrap_like(self, local: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return local

    def inherit(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        pass

    def notes(self) -> Sequence[str]:
        return self._notes

    def tracking(self) -> AbstractContextManager[None]:
        return self._dispatches.tracking()

    def _find_parameters(self) -> Iterator[tuple[Parameter, Layout | None]]:
        seen: set[int] = set()
        for chunk in self._chunks:
            for path, module in walk([chunk]):
                for name, tensor in module.named_parameters(recurse=False):
                    if id(tensor) in seen:
                        continue
                    seen.add(id(tensor))
                    owner, known = parameter_name(chunk, path, name)
                    layer, expert = self._experts.get(id(module), (None, None))
                    if layer is not None and expert is None:
                        known = with_global_number(known, layer)
                    sections = self._sections.get(id(module), 1)
                    layout = parameter_layout(
                        module,
                        name,
                        tensor.shape,
                        self._ranks,
                        sections,
                        is_expert=layer is not None,
                    )
                    users = tied_users(chunk, owner)
                    found = Parameter(module=owner, name=known, tensor=tensor, users=users)
                    self._of_chunk[id(chunk)].append(found)
                    yield found, layout

    def _embedding_end(self) -> int | None:
        """0 on the first, 1 on the last pipeline stage where both hold the tied embedding."""
        tied = any(map(is_tied, self._chunks))
        rank, size = _rank("pipeline_model"), _size("pipeline_model")
        if not tied or size == 1 or rank not in (0, size - 1):
            return None
        return int(rank > 0)


def _rank(group: str) -> int:
    return int(getattr(parallel_state, f"get_{group}_parallel_rank")())


def _size(group: str) -> int:
    return int(getattr(parallel_state, f"get_{group}_parallel_world_size")())


def _ranks(config: Any) -> Ranks:
    return Ranks(
        tp=(_rank("tensor_model"), _size("tensor_model")),
        cp=(parallel_state.get_context_parallel_rank(), _size("context")),
        ep=(_rank("expert_model"), _size("expert_model")),
        etp=(_rank("expert_tensor"), _size("expert_tensor")),
        sequence_parallel=bool(config.sequence_parallel),
    )


def _require_version(version: str) -> None:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UsageError(
            f"megatron-core {version} is not supported; TTrace needs {oldest} or newer"
        )
