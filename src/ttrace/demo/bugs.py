"""Silent mistakes from real frameworks, each planted in the demo by a few lines.

Enters: the parallel model and its mesh. Leaves: the same model with one mistake in it, which
trains without an error. A bug whose mistake is not in the model (a wrong loop, a wrong optimizer)
is a flag that train.py obeys. All are off unless named. `blame` is what a checker has to answer;
`origin` is the row of the catalogue and the upstream report it was taken from.

Most mistakes in DTensor code are one wrong label: a partial sum declared replicated. `_Relabel`
makes that claim in the forward or in the backward pass and moves no data.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate
from torch.nn import functional as F

from ttrace.core.blame import Blame, Phase, Stage
from ttrace.demo.model import Attention, RMSNorm, apply_rope

Plant = Callable[[nn.Module, DeviceMesh], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoBug:
    """One mistake, what it takes for it to show, and the answer a checker has to find."""

    name: str
    title: str
    origin: str
    blame: Blame
    plant: Plant | None = None
    """Called with the parallel model, before TTrace is attached."""
    zero_grad_each_microbatch: bool = False
    clips_by_local_norm: bool = False
    optimizer_before_parallel: bool = False
    min_dp: int = 1
    min_tp: int = 1
    min_microbatches: int = 1
    needs_sequence_parallel: bool = False
    needs_sharded_parameters: bool = False

    @property
    def min_layers(self) -> int:
        return 2 if any(module.startswith("layers.1.") for module in self.blame.modules) else 1


class _Relabel(torch.autograd.Function):
    """The identity on local data that declares another placement, forward, backward, or both."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: DTensor,
        forward_placement: Placement | None,
        backward_placement: Placement | None,
    ) -> DTensor:
        ctx.backward_placement = backward_placement
        return _declare(tensor, forward_placement)

    @staticmethod
    def backward(ctx: Any, *gradients: DTensor) -> tuple[DTensor, None, None]:
        return _declare(gradients[0], ctx.backward_placement), None, None


def _declare(tensor: DTensor, placement: Placement | None) -> DTensor:
    placements = tensor.placements if placement is None else (placement,)
    local = tensor.to_local()
    return DTensor.from_local(
        local.view_as(local),
        tensor.device_mesh,
        placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def _relabel(
    tensor: Tensor, *, forward: Placement | None = None, backward: Placement | None = None
) -> DTensor:
    return cast(DTensor, _Relabel.apply(tensor, forward, backward))


def _module(model: nn.Module, path: str) -> nn.Module:
    unwrapped = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    return cast(nn.Module, unwrapped).get_submodule(path)


def _replace_forward(module: nn.Module, forward: Callable[..., Tensor]) -> None:
    """Below every hook of the module: a tracer sees the mistake as the module's own."""
    module.forward = forward


def _keep_foreign_rows(model: nn.Module, mesh: DeviceMesh) -> None:
    embedding = _module(model, "tok_embeddings")
    original = embedding.forward

    def forward(tokens: Tensor) -> Tensor:
        partial = cast(DTensor, original(tokens))
        # the placement is cached by DTensor: a mask left in it would clash with the next batch's
        cast(Any, partial.placements[0]).mask_buffer.release_mask()
        return _relabel(partial, forward=Partial())

    _replace_forward(embedding, forward)


def _do_not_reduce_input_gradient(model: nn.Module, mesh: DeviceMesh) -> None:
    feed_forward = _module(model, "layers.1.feed_forward")
    original = feed_forward.forward
    _replace_forward(feed_forward, lambda x: original(_relabel(x, backward=Replicate())))


def _do_not_reduce_norm_gradient(model: nn.Module, mesh: DeviceMesh) -> None:
    norm = cast(RMSNorm, _module(model, "layers.1.ffn_norm"))

    def forward(x: Tensor) -> Tensor:
        return norm.normalise(x) * _relabel(norm.weight, backward=Replicate())

    _replace_forward(norm, forward)


def _do_not_divide_by_dp(model: nn.Module, mesh: DeviceMesh) -> None:
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model.register_comm_hook(mesh.get_group("dp"), _sum_bucket)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)


def _sum_bucket(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _add_bias_before_reduction(model: nn.Module, mesh: DeviceMesh) -> None:
    wo = _module(model, "layers.0.attention.wo")

    def forward(x: DTensor) -> DTensor:
        weight, bias = cast(DTensor, wo.weight), cast(DTensor, wo.bias)
        local = F.linear(x.to_local(), weight.to_local(), bias.to_local())
        return DTensor.from_local(local, x.device_mesh, [Partial()], run_check=False)

    _replace_forward(wo, forward)


def _shift_query_positions(model: nn.Module, mesh: DeviceMesh) -> None:
    if mesh.get_local_rank("tp") != 1:
        return
    attention = cast(Attention, _module(model, "layers.1.attention"))

    # keys keep their positions: rotary scores depend on differences only, and shifting both
    # would change nothing
    def rotate(query: Tensor, key: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        return apply_rope(query, rope[1:]), apply_rope(key, rope)

    attention.rotate = rotate  # type: ignore[method-assign]


def _do_not_reduce_output(model: nn.Module, mesh: DeviceMesh) -> None:
    w2 = _module(model, "layers.1.feed_forward.w2")
    original = w2.forward
    _replace_forward(w2, lambda x: _relabel(original(x), forward=Replicate()))


BUGS: tuple[DemoBug, ...] = (
    DemoBug(
        name="embedding-mask",
        title="the vocabulary-parallel embedding keeps a wrong row for tokens of other ranks",
        origin="slapo#80",
        blame=Blame.of("tok_embeddings", phase=Phase.FORWARD),
        plant=_keep_foreign_rows,
        min_tp=2,
    ),
    DemoBug(
        name="column-input-grad",
        title="the input gradient of a column-parallel MLP is not summed over tp",
        origin="torchtitan#1878",
        blame=Blame.of("layers.1.feed_forward", phase=Phase.BACKWARD),
        plant=_do_not_reduce_input_gradient,
        min_tp=2,
    ),
    DemoBug(
        name="norm-grad-unsynced",
        title="a norm weight's gradient is not summed over tp under sequence parallelism",
        origin="Megatron-LM#1446",
        blame=Blame.of("layers.1.ffn_norm", phase=Phase.GRADIENT_REDUCTION),
        plant=_do_not_reduce_norm_gradient,
        min_tp=2,
        needs_sequence_parallel=True,
    ),
    DemoBug(
        name="dp-scale",
        title="gradients are summed over dp but not divided by it",
        origin="family of Megatron-LM#906",
        blame=Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),
        plant=_do_not_divide_by_dp,
        min_dp=2,
    ),
    DemoBug(
        name="row-bias",
        title="every rank adds the bias of a row-parallel linear before the sum over tp",
        origin="torchtitan#4245",
        blame=Blame.of("layers.0.attention.wo", phase=Phase.FORWARD),
        plant=_add_bias_before_reduction,
        min_tp=2,
    ),
    DemoBug(
        name="rope-positions",
        title="tp rank 1 rotates its queries as if they stood one position later",
        origin="family of torchtitan#792",
        blame=Blame.of("layers.1.attention", phase=Phase.FORWARD),
        plant=_shift_query_positions,
        min_tp=2,
    ),
    DemoBug(
        name="accumulation-overwrite",
        title="gradients are zeroed before every microbatch, so only the last one counts",
        origin="DeepSpeed#7981",
        blame=Blame.at(Stage.GRADIENT_ACCUMULATION, Phase.MAIN_GRADIENT),
        zero_grad_each_microbatch=True,
        min_microbatches=2,
    ),
    DemoBug(
        name="local-clip-norm",
        title="every rank clips by the norm of its own shards instead of that of all",
        origin="DeepSpeed#1801",
        blame=Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM),
        clips_by_local_norm=True,
        needs_sharded_parameters=True,
    ),
    DemoBug(
        name="stale-optimizer",
        title="the optimizer was built before sharding and steps on parameters nobody uses",
        origin="accelerate#2665",
        blame=Blame.at(Stage.OPTIMIZER_STEP, Phase.STATE),
        optimizer_before_parallel=True,
        needs_sharded_parameters=True,
    ),
    DemoBug(
        name="missing-row-reduce",
        title="each tp rank keeps its own partial sum of a row-parallel linear",
        origin="family of torchtitan#1878",
        blame=Blame.of("layers.1.feed_forward.w2", phase=Phase.FORWARD),
        plant=_do_not_reduce_output,
        min_tp=2,
    ),
)


def find_bug(name: str) -> DemoBug:
    """The bug of that name; a `KeyError` that lists the names otherwise."""
    for bug in BUGS:
        if bug.name == name:
            return bug
    raise KeyError(f"no bug {name!r}; known: {', '.join(bug.name for bug in BUGS)}")
