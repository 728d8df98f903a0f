"""Data parallel: DDP, FSDP2, and gradients averaged by hand, in the demo's model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

import ttrace
from ttrace.core.blame import Blame, Phase, Stage
from ttrace.demo.model import ModelConfig, Transformer, build_model
from zoo.native.job import native_bug
from zoo.native.workload import (
    MAX_NORM,
    VOCAB,
    Microbatch,
    is_parallel,
    microbatches,
    summed_loss,
    total_count,
)

_LEARNING_RATE = 1e-3


def _build(*, tied: bool = False, dtype: torch.dtype = torch.float32) -> Transformer:
    sizes = ModelConfig(dim=32, hidden_dim=64, vocab_size=VOCAB, tied=tied)
    return build_model(sizes, seed=0, dtype=dtype)


def _mine(step: int = 0) -> list[Microbatch]:
    return microbatches(step=step, parts=dist.get_world_size(), part=dist.get_rank())


def _loss(model: nn.Module, batch: Microbatch, bugs: frozenset[str]) -> Tensor:
    """Over all tokens of the global batch, times the ranks whose average is taken later."""
    summed = summed_loss(model(batch.tokens), batch.labels)
    if "mean-of-means" in bugs:
        return summed / batch.count / len(_mine())
    if "rank-means" in bugs:
        return summed / sum(part.count for part in _mine())
    return summed * dist.get_world_size() / total_count()


def train_ddp(bugs: frozenset[str]) -> None:
    """DDP, which reduces after the last microbatch."""
    whole = _build()
    if "local-layer-index" in bugs:
        stored = whole.layers[0].state_dict()
        whole.layers[1].load_state_dict(stored)
    optimized = list(whole.parameters())
    _remake(whole.layers[1])
    model = DistributedDataParallel(whole) if is_parallel() else whole
    if "lost-hooks" in bugs:
        # Another dtype, like another device, gives each parameter a new place in the graph, where
        # no hook of DDP is; the values are the same when they come back.
        model.double().float()
    if "remade-parameters" not in bugs:
        optimized = list(model.parameters())
    optimizer = torch.optim.AdamW(optimized, lr=_LEARNING_RATE)
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        batches = _mine()
        for batch in batches:
            with _unreduced(model) if batch is not batches[-1] else nullcontext():
                _loss(model, batch, bugs).backward()
        clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()


def _remake(module: nn.Module) -> None:
    """New parameter objects with the same values, as loading or sharding may make them."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            setattr(part, name, nn.Parameter(parameter.detach().clone()))


def _unreduced(model: nn.Module) -> AbstractContextManager[None]:
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


def train_fsdp(bugs: frozenset[str]) -> None:
    """FSDP2, which reduces after the last microbatch."""
    model = _build()
    if is_parallel():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
        reduce_dtype = torch.bfloat16 if "bf16-reduction" in bugs else torch.float32
        policy = MixedPrecisionPolicy(reduce_dtype=reduce_dtype)
        for part in (*model.layers, model):
            sharded = fully_shard(part, mesh=mesh, mp_policy=policy)
            sharded.set_force_sum_reduction_for_comms(True)  # gloo cannot average
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        batches = _mine()
        for batch in batches:
            is_last = batch is batches[-1]
            if isinstance(model, FSDPModule):
                reduces = not is_last if "inverted-sync" in bugs else is_last
                model.set_requires_gradient_sync(reduces)
            _loss(model, batch, bugs).backward()
        clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()


def train_by_hand(bugs: frozenset[str]) -> None:
    """Gradients accumulated and averaged in buffers of their own, embedding and head tied."""
    model = _build(tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        buffers = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for batch in _mine():
            optimizer.zero_grad()
            _loss(model, batch, bugs).backward()
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                if "copied-accumulation" in bugs:
                    buffers[name].copy_(parameter.grad)
                else:
                    buffers[name].add_(parameter.grad)
        _average(model, buffers, bugs)
        clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()


def _average(model: Transformer, buffers: dict[str, Tensor], bugs: frozenset[str]) -> None:
    for buffer in buffers.values():
        dist.all_reduce(buffer)
        buffer /= dist.get_world_size()
    if model.config.tied:
        buffers["output.weight"] = buffers["tok_embeddings.weight"]
    model.zero_grad(set_to_none=False)
    aliases = "tied-twice" in bugs
    for name, parameter in model.named_parameters(remove_duplicate=not aliases):
        assert parameter.grad is not None
        parameter.grad += buffers[name]


def train_masters(bugs: frozenset[str]) -> None:
    """A bf16 model whose optimizer steps on fp32 copies."""
    model = _build(dtype=torch.bfloat16)
    parameters = list(model.parameters())
    masters = [nn.Parameter(parameter.detach().float()) for parameter in parameters]
    # large enough to move bf16, and with an eps that keeps Adam's first step from being a sign
    optimizer = torch.optim.AdamW(masters, lr=0.03, eps=1e-3)
    tracer = ttrace.attach(model, optimizer)
    for step in range(2):
        with tracer.step():
            model.zero_grad()
            for batch in _mine(step):
                _loss(model, batch, bugs).backward()
            for parameter, master in zip(parameters, masters, strict=True):
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
                master.grad = parameter.grad.float()
            clip_grad_norm_(masters, MAX_NORM)
            optimizer.step()
            if "stale-weights" not in bugs:
                for parameter, master in zip(parameters, masters, strict=True):
                    parameter.data.copy_(master.data)


_ddp_bug = partial(native_bug, train=train_ddp, layout="DDP 2")
_fsdp_bug = partial(native_bug, train=train_fsdp, layout="FSDP2 2")
_hand_bug = partial(native_bug, train=train_by_hand, layout="DP 2 by hand, tied")
_masters_bug = partial(native_bug, train=train_masters, layout="DP 2 by hand, bf16")

BUGS = (
    _ddp_bug(
        "lost-hooks",
        "moving a DDP model detaches its hooks: gradients are never reduced",
        "pytorch#104336",
        Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),
    ),
    _ddp_bug(
        "mean-of-means",
        "each microbatch's loss is divided by its own tokens, then averaged",
        "transformers#34191",
        Blame.at(Stage.LOSS, Phase.FORWARD),
    ),
    _ddp_bug(
        "local-layer-index",
        "a layer loads its weights by the index in its stage, not in the model",
        "Megatron-LM b759cd37e6",
        Blame.of("layers.1", phase=Phase.PARAMETERS),
    ),
    _ddp_bug(
        "remade-parameters",
        "the optimizer still holds the parameters that a layer had before it was remade",
        "accelerate#3209",
        Blame.at(Stage.OPTIMIZER_STEP, Phase.STATE),
    ),
    _fsdp_bug(
        "inverted-sync",
        "gradients are reduced after every microbatch but the last",
        "DeepSpeed#1264",
        Blame.at(Stage.GRADIENT_ACCUMULATION, Phase.MAIN_GRADIENT),
    ),
    _fsdp_bug(
        "bf16-reduction",
        "gradients are reduced in bf16 although fp32 was asked for",
        "Megatron-LM#6624",
        Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),
    ),
    _fsdp_bug(
        "rank-means",
        "each rank's loss is divided by its own tokens, then averaged",
        "torchtitan#1842",
        Blame.at(Stage.LOSS, Phase.FORWARD),
    ),
    _hand_bug(
        "tied-twice",
        "a tied parameter's gradient is written back once for each of its names",
        "torchtitan#3174",
        Blame.of("tok_embeddings", phase=Phase.GRADIENT_REDUCTION),
    ),
    _hand_bug(
        "copied-accumulation",
        "a microbatch's gradient overwrites the buffer it should be added to",
        "Fast-LLM#550",
        Blame.at(Stage.GRADIENT_ACCUMULATION, Phase.MAIN_GRADIENT),
    ),
    _masters_bug(
        "stale-weights",
        "new fp32 weights are never copied into the bf16 model",
        "Megatron-LM#6336",
        Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE),
        steps=2,
    ),
)
