"""Modules of a user's own in megatron-core: no bug, but what no table of the adapter knows."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import mappings
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import nn

import ttrace
from zoo.megatron.plant import replace, wrap


class OwnMLP(nn.Module):
    """A user's tensor-parallel MLP: parameters say that they are split, but not how."""

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__()
        size = parallel_state.get_tensor_model_parallel_world_size()
        inner, width = config.ffn_hidden_size // size, config.hidden_size
        self.up = nn.Parameter(torch.empty(inner, width))
        self.down = nn.Parameter(torch.empty(width, inner))
        for parameter in (self.up, self.down):  # without it the gradient norm counts one rank's
            parameter.tensor_model_parallel = True  # type: ignore[attr-defined]

    def forward(self, hidden: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        hidden = mappings.copy_to_tensor_model_parallel_region(hidden)
        inner = torch.relu(hidden @ self.up.T)
        return mappings.reduce_from_tensor_model_parallel_region(inner @ self.down.T), None

    def start(self) -> None:
        """The same values in every layout."""
        index = parallel_state.get_tensor_model_parallel_rank()
        generator = torch.Generator().manual_seed(0)
        for parameter, dim in ((self.up, 0), (self.down, 1)):
            size = parallel_state.get_tensor_model_parallel_world_size()
            shape = [n * size if at == dim else n for at, n in enumerate(parameter.shape)]
            whole = torch.randn(shape, generator=generator) / 8
            parameter.data.copy_(whole.chunk(size, dim)[index])


class OwnMLPTold(OwnMLP):
    """The same, with a checkpoint that says it."""

    def sharded_state_dict(self, prefix: str, sharded_offsets: Any, metadata: Any) -> Any:
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True),
            prefix,
            {"up": 0, "down": 1},
            sharded_offsets,
            tp_group=parallel_state.get_tensor_model_parallel_group(),
            dp_cp_group=metadata["dp_cp_group"],
        )


def _with_own(stack: ExitStack, kind: type[OwnMLP]) -> None:
    import gpt

    def model(original: Any, **kwargs: Any) -> Any:
        for spec in kwargs["transformer_layer_spec"].layer_specs[:1]:
            spec.submodules.mlp = kind
        return original(**kwargs)

    def generate_parameters(chunks: Any) -> None:
        ttrace.generate_parameters(chunks)
        for module in (module for chunk in chunks for module in chunk.modules()):
            if isinstance(module, OwnMLP):
                module.start()

    wrap(stack, gpt, "GPTModel", model)
    replace(stack, gpt, "ttrace", SimpleNamespace(generate_parameters=generate_parameters))


def own_module(stack: ExitStack) -> None:
    """The first layer has the user's MLP."""
    _with_own(stack, OwnMLP)


def own_module_told(stack: ExitStack) -> None:
    """The same, and its checkpoint says how it is split."""
    _with_own(stack, OwnMLPTold)
