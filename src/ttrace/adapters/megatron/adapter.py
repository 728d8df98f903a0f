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
from megatron.core.utils import get_model_config
from torch import nn
from torch.optim import Optimizer

from ttrace.adapters.base import (
    Adapter,
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
from ttrace.adapters.flat import flat_parts
from ttrace.adapters.leaves import leaves
from ttrace.adapters.megatron.activations import Activations
from ttrace.adapters.megatron.experts import Dispatches, ExpertRows
from ttrace.adapters.megatron.layouts import (
    data_axis,
    expert_modules,
    heads_of_norms,
    mesh_axes,
    ranks_of,
    sections_of,
    unwrapped,
    vocabulary_modules,
    walk,
)
from ttrace.adapters.megatron.parameters import ParameterTable
from ttrace.adapters.megatron.training import (
    Optimizers,
    watch_accumulation,
    watch_backward,
    watch_clipping,
    watch_losses,
    watch_reduction,
)
from ttrace.core.ids import MASTER, Kind
from ttrace.core.layout import Layout
from ttrace.errors import UsageError

# Fields of Megatron's TransformerConfig, which Transformer Engine's attention follows.
_IN_FLOAT8 = ("fp8_dot_product_attention", "fp8_multi_head_attention")
OLDEST = (0, 16)  # the first whose MoE layers dispatch in the steps that are watched


def unseen_in_kernels(config: Any) -> list[str]:
    """What a person should know of the modules that this config makes."""
    asked = [name for name in _IN_FLOAT8 if getattr(config, name, False)]
    told = (
        f"attention quantises inside of its kernel ({', '.join(asked)}): its codes and scales are "
        "not compared, and noise is that of its inputs and outputs; compare with it off to judge it"
    )
    return [told] if asked else []


class MegatronAdapter(Adapter):
    """Answers for the chunks of a Megatron model on this rank."""

    name = "megatron"

    def __init__(self, chunks: Sequence[nn.Module]) -> None:
        require_version(megatron.core.__version__)
        super().__init__([unwrapped(chunk) for chunk in chunks])
        self._config = get_model_config(chunks[0])
        self._ranks = ranks_of(self._config)
        self._modules = list(walk(self.roots))
        sections, experts = sections_of(self._modules), expert_modules(self._modules)
        self._optimizers: Optimizers | None = None
        self._late = False  # whether an optimizer step left parameters to be gathered later
        self._table = ParameterTable(self.roots, self._ranks, sections, experts)
        self.notes += [*self._table.problems, *unseen_in_kernels(self._config)]
        self._dispatches = Dispatches(self._ranks.tp, self._ranks.cp)
        self._activations = Activations(
            ranks=self._ranks,
            roots={id(root): root for root in self.roots},
            paths={id(module): path for path, module in self._modules},
            parameters=self._table.layouts,
            experts=ExpertRows(self._ranks, self._dispatches, experts, sections),
            heads=heads_of_norms(self._modules),
        )

    def coordinates(self) -> Coordinates:
        batch = data_axis()
        per_token = self._config.calculate_per_token_loss
        return Coordinates(
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            axes=mesh_axes(self._ranks, self.roots),
            batch=batch,
            loss_parts=1 if per_token else batch[1] * self._ranks.cp[1],
            vocabulary=vocabulary_modules(self._modules),
        )

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        yield from self._modules

    def edges(self, module: nn.Module) -> tuple[bool, bool]:
        return True, not self._activations.hands_on(module)

    def loss_layout(self) -> Layout | None:
        """Each context parallel rank has the loss of its own tokens."""
        return Layout.full(()).summed_over("cp") if self._ranks.cp[1] > 1 else None

    def boundary(
        self, module: nn.Module, kind: Kind, slot: str, tensor: torch.Tensor
    ) -> BoundarySpec | None:
        return self._activations.boundary(module, kind, slot, tensor)

    def parameters(self) -> Iterator[Parameter]:
        yield from self._table.all

    def main_grad(self, parameter: nn.Parameter) -> torch.Tensor | None:
        found = getattr(parameter, "main_grad", None)
        return parameter.grad if found is None else found

    def updated(self, parameter: nn.Parameter) -> torch.Tensor:
        main = None if self._optimizers is None else self._optimizers.main(parameter)
        return parameter if main is None else main

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
                axes = self._table.axes_summed_last(parameter.module, name) if is_first else ()
                yield from self._owned_parts(name, gradient, tensor, axes)
        else:
            if self._late:
                yield from self._owned_parts(name, tensor.detach(), tensor)
            else:
                yield ParameterPart(slot=name, tensor=tensor, layout=self._table.layout(tensor))
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
        known = self._table.layout(parameter)
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
            for part, layout in flat_parts(flat, base, parameter.shape, start, stop):
                yield ParameterPart(slot=slot, tensor=part, layout=layout)

    def local_gradient_layout(self, module: str, name: str) -> Layout | None:
        return self._table.local_gradient_layout(module, name)

    def replicas(self, module: str, tensor: torch.Tensor) -> Sequence[int] | None:
        """All: names have the numbers of layers and experts in the whole model."""
        return range(dist.get_world_size()) if isinstance(tensor, nn.Parameter) else None

    def optimizers(self, given: Sequence[Any]) -> Sequence[Optimizer]:
        self._optimizers = Optimizers(given) if given else None
        return [] if self._optimizers is None else self._optimizers.inner()

    def tracking(self) -> AbstractContextManager[None]:
        return self._dispatches.tracking()

    def watch_backward(self, around: AroundBackward) -> AbstractContextManager[None]:
        return watch_backward(around)

    def watch_losses(self, aside: Aside) -> AbstractContextManager[None]:
        per_token = bool(self._config.calculate_per_token_loss)
        return watch_losses(self._ranks, aside, per_token=per_token)

    def watch_accumulation(self, before: BeforeReduction) -> AbstractContextManager[None]:
        return watch_accumulation(before)

    def watch_reduction(self, after: AfterReduction) -> AbstractContextManager[None]:
        return watch_reduction(lambda chunk: after(self._table.of_chunk[id(unwrapped(chunk))]))

    def watch_clipping(self, before: BeforeClip) -> AbstractContextManager[None]:
        return watch_clipping(before)


def require_version(version: str) -> None:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UsageError(
            f"megatron-core {version} is not supported; TTrace needs {oldest} or newer"
        )
