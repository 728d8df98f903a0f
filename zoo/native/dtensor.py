"""DTensor tensor parallelism in the demo's model: a gradient left partial, and a tiny factor."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.nn import functional as F

import ttrace
from ttrace.core.blame import Blame, Phase
from ttrace.demo.model import FeedForward, ModelConfig, Transformer, build_model
from ttrace.demo.parallel import parallelize
from ttrace.demo.train import clip_gradients
from zoo.native.job import native_bug
from zoo.native.workload import VOCAB, is_parallel, microbatches, summed_loss, total_count

_FACTOR = 1.02  # two and a half eps of bf16


class LocalFeedForward(FeedForward):
    """The gated MLP on plain local tensors, as grouped experts are written."""

    forgets_sum = False

    def forward(self, x: Tensor) -> Tensor:
        weights = [linear.weight for linear in (self.w1, self.w2, self.w3)]
        if not isinstance(x, DTensor):
            return _gated(x, *weights)
        inside = x.to_local(grad_placements=None if self.forgets_sum else [Partial()])
        part = _gated(inside, *(cast(DTensor, weight).to_local() for weight in weights))
        whole = DTensor.from_local(part, x.device_mesh, [Partial()], run_check=False)
        return whole.redistribute(placements=[Shard(1)]).to_local()


def _gated(x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, w1)) * F.linear(x, w3), w2)


def train_local(bugs: frozenset[str]) -> None:
    model = build_model(ModelConfig(dim=32, hidden_dim=64, vocab_size=VOCAB), seed=0)
    # only the methods differ: parameters and their names stay
    feed_forward = cast(nn.Module, model.layers[1].feed_forward)
    feed_forward.__class__ = LocalFeedForward
    cast(LocalFeedForward, feed_forward).forgets_sum = "partial-input-gradient" in bugs
    _train(_parallel(model, sequence_parallel=True))


def train_deep(bugs: frozenset[str]) -> None:
    """8 layers in bf16, where rounding hides a factor in one linear."""
    sizes = ModelConfig(dim=32, hidden_dim=64, vocab_size=VOCAB, n_layers=8)
    model = _parallel(build_model(sizes, seed=0, dtype=torch.bfloat16), sequence_parallel=False)
    if "small-factor" in bugs:
        linear = model.get_submodule("layers.4.feed_forward.w1")
        original = linear.forward
        linear.forward = lambda x: original(x) * _FACTOR
    _train(model)


def _parallel(model: Transformer, *, sequence_parallel: bool) -> nn.Module:
    if not is_parallel():
        return model
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp", "tp"))
    return parallelize(model, mesh, sequence_parallel=sequence_parallel)


def _train(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        for batch in microbatches():
            (summed_loss(model(batch.tokens), batch.labels) / total_count()).backward()
        clip_gradients(model)
        optimizer.step()


_local_bug = partial(native_bug, train=train_local, layout="TP 2, sequence parallel")
_deep_bug = partial(native_bug, train=train_deep, layout="TP 2, bf16, 8 layers")

BUGS = (
    _local_bug(
        "partial-input-gradient",
        "to_local() hands on the gradient of a split layer as if it were whole",
        "torchtitan#1878",
        Blame.of("layers.1.feed_forward", phase=Phase.BACKWARD),
    ),
    _deep_bug(
        "small-factor",
        "one bf16 linear of 8 layers is off by a factor of 1.02",
        "made up",
        Blame.of("layers.4.feed_forward.w1", phase=Phase.FORWARD),
        is_hidden=True,
    ),
)
