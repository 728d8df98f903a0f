"""Spreads the demo model over a (dp, tp) mesh, the way torchtitan does for its Llama.

Enters: the whole model, the same on every rank, and a 2-D mesh with axes `dp` and `tp`. Leaves:
the parallel model. An axis of size 1 is left alone, so a (1, 1) mesh gives the model back.
Nothing here knows of bugs or of tracing.
"""

from typing import Literal

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from ttrace.demo.model import Transformer

DataParallel = Literal["fsdp", "ddp"]


def parallelize(
    model: Transformer,
    mesh: DeviceMesh,
    *,
    sequence_parallel: bool = True,
    data_parallel: DataParallel = "fsdp",
) -> nn.Module:
    """Tensor parallelism inside, data parallelism around it."""
    dp, tp = mesh["dp"], mesh["tp"]
    if tp.size() > 1:
        tensor_parallel(model, tp, sequence_parallel=sequence_parallel)
    if dp.size() == 1:
        return model
    if data_parallel == "fsdp":
        return shard_over(model, dp)
    return replicate_over(model, dp, has_dtensors=tp.size() > 1)


def tensor_parallel(model: Transformer, tp: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Shards heads, MLP channels and vocabulary; sequence parallel: also the residual."""
    if model.config.n_kv_heads % tp.size():
        raise ValueError(
            f"{model.config.n_kv_heads} kv heads cannot be split over tp {tp.size()}; "
            "choose a tp that divides them"
        )
    parallelize_module(model, tp, _outer_plan(sequence_parallel=sequence_parallel))
    for layer in model.layers:
        parallelize_module(layer, tp, _layer_plan(sequence_parallel=sequence_parallel))
    if model.config.tied:
        # parallelize_module gave the embedding and the output a new parameter each
        model.tie()


def _outer_plan(*, sequence_parallel: bool) -> dict[str, ParallelStyle]:
    residual = Shard(1) if sequence_parallel else Replicate()
    plan: dict[str, ParallelStyle] = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=residual),
        "output": ColwiseParallel(input_layouts=residual, output_layouts=Replicate()),
    }
    return plan | ({"norm": SequenceParallel()} if sequence_parallel else {})


def _layer_plan(*, sequence_parallel: bool) -> dict[str, ParallelStyle]:
    residual = Shard(1) if sequence_parallel else Replicate()
    plan: dict[str, ParallelStyle] = {
        "attention": PrepareModuleInput(
            input_layouts=(residual, None), desired_input_layouts=(Replicate(), None)
        ),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=residual),
        "feed_forward": PrepareModuleInput(
            input_layouts=(residual,), desired_input_layouts=(Replicate(),)
        ),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=residual),
        "feed_forward.w3": ColwiseParallel(),
    }
    if sequence_parallel:
        plan |= {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
    return plan


def shard_over(model: Transformer, dp: DeviceMesh) -> nn.Module:
    """FSDP2, one group of parameters for every layer and one for the rest."""
    for layer in model.layers:
        fully_shard(layer, mesh=dp)
    fully_shard(model, mesh=dp)
    _sum_then_divide(model)
    return model


def replicate_over(model: Transformer, dp: DeviceMesh, *, has_dtensors: bool) -> nn.Module:
    """Classic DDP; over DTensor parameters, which it cannot hold, FSDP2's replicating sibling."""
    if not has_dtensors:
        return nn.parallel.DistributedDataParallel(model, process_group=dp.get_group())
    from torch.distributed._composable.replicate_with_fsdp import replicate

    for layer in model.layers:
        replicate(layer, mesh=dp)
    replicate(model, mesh=dp)
    _sum_then_divide(model)
    return model


def _sum_then_divide(model: nn.Module) -> None:
    """The default multiplies inside the collective, which gloo has no operation for."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
