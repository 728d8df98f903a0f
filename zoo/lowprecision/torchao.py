"""torchao's own recipes: float8 linears, and the tensor parallelism that belongs to them."""

from __future__ import annotations

from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

from ttrace.demo.model import Transformer
from zoo.lowprecision.layouts import mesh_of_all


def convert(model: Transformer, recipe: str, *, emulate: bool, gathers: bool = False) -> None:
    """Linears of the blocks become torchao's; `gathers`: FSDP2 sends their weights in float8."""
    config = Float8LinearConfig.from_recipe_name(recipe)
    changed = {"emulate": emulate, "enable_fsdp_float8_all_gather": gathers}
    for name, value in changed.items():
        object.__setattr__(config, name, value)  # it is frozen, and its recipes emulate nothing
    convert_to_float8_training(
        model, config=config, module_filter_fn=lambda _, name: name.startswith("layers.")
    )


def split(model: Transformer, *, sequence: bool) -> nn.Module:
    """With DTensors. Activations are gathered in high precision: gloo sends no float8.

    torchao has styles that cast before they gather. Then what a module is given is quantised in the
    candidate alone, and a bias has a gradient of codes: another training than on one process.
    """
    mesh = mesh_of_all("cpu")
    for layer in model.layers:
        parallelize_module(layer, mesh, _plan(Shard(1) if sequence else Replicate()))
        if sequence:
            parallelize_module(
                layer, mesh, {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
            )
    if sequence:
        outside: dict[str, ParallelStyle] = {
            "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
        parallelize_module(model, mesh, outside)
    return model


def _plan(residual: Placement) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {
        "attention": PrepareModuleInput(
            input_layouts=(residual, None), desired_input_layouts=(Replicate(), None)
        ),
        "feed_forward": PrepareModuleInput(
            input_layouts=(residual,), desired_input_layouts=(Replicate(),)
        ),
        "attention.wo": RowwiseParallel(output_layouts=residual),
        "feed_forward.w2": RowwiseParallel(output_layouts=residual),
    }
    plan |= {f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")}
    return plan | {f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")}
