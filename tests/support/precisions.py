"""A small language model that trains in any precision and layout, right or with a planted cast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import ttrace

NO_POLICY = MixedPrecisionPolicy()
WORDS, WIDTH = 96, 32
BATCH, POSITIONS = 4, 8


def _heavier(group: Any, bucket: Any) -> Any:
    """As the first, but one rank counts for more."""
    bucket.buffer().mul_(1.0 + 0.05 * dist.get_rank())
    return default_hooks.bf16_compress_hook(group, bucket)


HOOKS = {
    # By its own name torch lets it in on GPUs only.
    "bfloat16 hook": lambda group, bucket: default_hooks.bf16_compress_hook(group, bucket),
    "float16 hook": default_hooks.fp16_compress_hook,
    "heavier bfloat16 hook": lambda group, bucket: _heavier(group, bucket),
}


def rounded(tensor: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """To a lower precision and back."""
    return tensor.to(dtype).to(tensor.dtype)


class Norm(nn.LayerNorm):
    """`is_low`: it computes in bfloat16, whatever autocast says, and returns its input's dtype."""

    is_low = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_low:
            return super().forward(x)
        with torch.autocast("cpu", enabled=False):
            weight, bias = self.weight.bfloat16(), self.bias.bfloat16()
            return F.layer_norm(x.bfloat16(), self.normalized_shape, weight, bias).to(x.dtype)


class Quantised(nn.Module):
    """float8_e4m3fn under a scale that is a power of two, with a straight-through gradient."""

    is_on = True

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_on:
            return x
        scale = torch.exp2(torch.ceil(torch.log2(x.detach().abs().amax() / 448)))
        codes = (x.detach() / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale
        return x + (codes - x).detach()


class Mlp(nn.Module):
    casts = False

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(self.act(self.up(x)))
        return rounded(y) if self.casts else y


class Block(nn.Module):
    def __init__(self, *, quantises: bool) -> None:
        super().__init__()
        self.norm = Norm(WIDTH)
        self.quantise = Quantised() if quantises else nn.Identity()
        self.mlp = Mlp()

    def leave_unquantised(self) -> None:
        assert isinstance(self.quantise, Quantised)
        self.quantise.is_on = False

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.quantise(self.norm(x)))


class Model(nn.Module):
    def __init__(self, *, quantises: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(quantises=quantises) for _ in range(2))
        self.norm = Norm(WIDTH)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def block(self, number: int) -> Block:
        found = self.blocks[number]
        assert isinstance(found, Block)
        return found

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.drop(self.norm(x)))


@dataclass(frozen=True, kw_only=True)
class Training:
    """`precision`: a dtype of parameters, or autocast. `plant`: what goes wrong, or nothing."""

    layout: str = "one"
    precision: str = "float32"
    optimizer: str = "adamw"
    accumulate: int = 1
    plant: str = ""
    quantises: bool = False
    frozen: bool = False
    policy: MixedPrecisionPolicy = NO_POLICY
    steps: int = 1


def train(how: Training) -> None:
    torch.manual_seed(0)
    model = Model(quantises=how.quantises)
    if how.precision != "autocast":
        model = model.to(getattr(torch, how.precision))
    if how.frozen:
        model.embed.requires_grad_(requires_grad=False)
        nn.init.zeros_(model.block(1).mlp.down.weight)
    _plant(model, how.plant)
    wrapped = _laid_out(model, how.layout, how.policy)
    if how.plant == "policy forgotten":
        wrapped.register_forward_hook(_reduce_in_bfloat16)
    if how.plant in HOOKS:
        wrapped.register_comm_hook(None, HOOKS[how.plant])
    made = _OPTIMIZERS[how.optimizer](model.parameters())
    tracer = ttrace.attach(wrapped, made)
    tokens = torch.randint(WORDS, (BATCH * how.steps, POSITIONS + 1))
    for batch in tokens.split(BATCH):
        with tracer.step():
            _backward(wrapped, batch, how)
            before = [parameter.detach().clone() for parameter in model.parameters()]
            if how.plant != "one rank skips" or dist.get_rank() == 0:
                made.step()
            _after_step(model, made, before, how.plant)
            made.zero_grad()


def _reduce_in_bfloat16(model: nn.Module, *_: Any) -> None:
    """Whatever its policy says."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                group._reduce_dtype = torch.bfloat16


def _backward(model: Any, batch: Tensor, how: Training) -> None:
    splits = how.layout in ("ddp", "fsdp2", "by hand")
    own = batch.chunk(dist.get_world_size())[dist.get_rank()] if splits else batch
    parts = own.chunk(how.accumulate)
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        waits = not is_last and isinstance(model, DistributedDataParallel)
        if how.layout == "fsdp2":
            model.set_requires_gradient_sync(is_last)
        with model.no_sync() if waits else nullcontext():
            (_loss(model, part, how) / how.accumulate).backward()
        if how.plant == "accumulation":
            for parameter in model.parameters():
                parameter.grad = rounded(parameter.grad)
    if how.layout == "by hand":
        for parameter in model.parameters():
            low = torch.bfloat16 if how.plant == "reduction" else parameter.grad.dtype
            sent = parameter.grad.to(low)
            dist.all_reduce(sent)
            parameter.grad = (sent / dist.get_world_size()).to(parameter.grad.dtype)


def _loss(model: nn.Module, part: Tensor, how: Training) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=how.precision == "autocast"):
        logits, labels = model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten()
    dtype = torch.bfloat16 if how.plant == "loss" else torch.float32
    return F.cross_entropy(logits.to(dtype), labels)


def _plant(model: Model, plant: str) -> None:
    if plant == "norm":
        model.norm.is_low = True
    if plant == "mlp":
        model.block(0).mlp.casts = True
    if plant == "no quantiser":
        model.block(1).leave_unquantised()


def _after_step(
    model: Model, optimizer: torch.optim.Optimizer, before: list[Tensor], plant: str
) -> None:
    with torch.no_grad():
        for parameter, earlier in zip(model.parameters(), before, strict=True):
            if plant == "update":
                parameter.copy_(rounded(parameter))
            if plant == "update of bfloat16":  # as master weights that are missing
                parameter.copy_((earlier.bfloat16() + (parameter - earlier).bfloat16()).float())
            state = optimizer.state[parameter]
            if plant == "state":
                state["exp_avg_sq"].copy_(rounded(state["exp_avg_sq"]))
            if plant == "open state":
                state["exp_avg_sq"] = state["exp_avg_sq"].bfloat16()


def _laid_out(model: Model, layout: str, policy: MixedPrecisionPolicy) -> Any:
    if layout == "ddp":
        return DistributedDataParallel(model)
    if layout == "fsdp2":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    if layout in ("tp", "tp sp"):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
        parallelize_module(model, mesh, _plan(sequence=layout == "tp sp"))
    return model


def _plan(*, sequence: bool) -> dict[str, Any]:
    if not sequence:
        return {
            "blocks.*.mlp.up": ColwiseParallel(),
            "blocks.*.mlp.down": RowwiseParallel(),
        }
    return {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "blocks.*.norm": SequenceParallel(),
        "blocks.*.mlp": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        ),
        "blocks.*.mlp.up": ColwiseParallel(),
        "blocks.*.mlp.down": RowwiseParallel(output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }


class OfLocalTensors(torch.optim.Optimizer):
    """Momentum that knows no DTensors: its state is of this rank's part, and says so nowhere."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for parameter in (p for group in self.param_groups for p in group["params"]):
            value, gradient = _local(parameter), _local(parameter.grad)
            state = self.state[parameter]
            momentum = state.setdefault("momentum", torch.zeros_like(value))
            value -= 0.1 * momentum.mul_(0.9).add_(gradient)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


_OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "local": OfLocalTensors,
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
}
