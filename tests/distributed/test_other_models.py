"""Correct candidates of models unlike the demo must pass: each is a way to cry wolf."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

import ttrace
from tests.support.tracing import check, explain
from ttrace.capture.settings import Settings
from ttrace.core.ids import Kind
from ttrace.lab.functions import WorkerPool

VOCAB, LENGTH, WIDTH, BATCH = 64, 12, 24, 8


class Block(nn.Module):
    """Post-norm: the residual stream itself enters the attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor, *, mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        mixed, _ = self.attention(x, x, x, attn_mask=mask, need_weights=False)
        x = self.norm1(x + mixed)
        hidden = self.act(self.up(x))
        return self.norm2(x + self.down(hidden)), {"hidden": hidden}


class Gpt(nn.Module):
    """Learned positions, tied head, loss made inside: like nanoGPT and Hugging Face models."""

    def __init__(self, *, recompute: str = "") -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.tokens.weight
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.recompute = recompute

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        for block in self.blocks:
            if self.recompute:
                run: Callable[..., Any] = block
                x, _ = checkpoint(run, x, mask=mask, use_reentrant=False)
            else:
                x, _ = block(x, mask=mask)
        logits = self.head(x)
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class Mlp(nn.Module):
    """Uneven sizes, sequence-first activations, a module called twice, a gain per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared = nn.Linear(WIDTH, 21), nn.Linear(21, 21)
        self.last = nn.Linear(21, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.first(x)).transpose(0, 1)
        x = self.shared(x) + F.gelu(self.shared(x)).square()
        return self.last(x.transpose(0, 1))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(inplace=True), nn.Flatten()
        )
        self.head = nn.Linear(8 * 36, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Gather(torch.autograd.Function):
    """Parts of the sequence from all ranks; the gradient of a part goes back to its rank."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        parts = [torch.empty_like(part) for _ in range(ranks())]
        if ranks() == 1:
            return part.clone()
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].chunk(ranks(), dim=1)[dist.get_rank() if ranks() > 1 else 0]


class SplitByHand(nn.Module):
    """Sequence parallel as Megatron does it: a plain norm weight whose gradient is a part."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        mine = x.chunk(ranks(), dim=1)[dist.get_rank() if ranks() > 1 else 0]
        return self.head(Gather.apply(self.norm(mine)))


def ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def by_hand(model: nn.Module) -> nn.Module:
    return model


def ddp(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, find_unused_parameters=True)


def fsdp(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    for child in getattr(model, "blocks", model.children()):
        fully_shard(child, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def hsdp(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    fully_shard(model, mesh=mesh)
    return model


def wrapped_recompute(model: Any) -> nn.Module:
    for index, block in enumerate(model.blocks):
        model.blocks[index] = checkpoint_wrapper(block)
    return ddp(model)


def tensor_parallel(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in model.blocks:  # type: ignore[union-attr]
        block.act = nn.ReLU()  # torch forbids changing the view that to_local returns
        parallelize_module(block, mesh, plan)
    return model


def uneven_tensor_parallel(model: nn.Module) -> nn.Module:
    """All activations stay DTensors; 21 columns over 2 ranks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    stays = ColwiseParallel(output_layouts=Replicate(), use_local_output=False)
    plan: dict[str, Any] = {
        "first": stays,
        "shared": stays,
        "last": ColwiseParallel(output_layouts=Replicate()),
    }
    return parallelize_module(model, mesh, plan)


CASES: dict[str, tuple[str, str, int, int]] = {
    # name: model, layout, ranks, microbatches
    "gpt-ddp": ("gpt", "ddp", 2, 1),
    "gpt-ddp-microbatches": ("gpt", "ddp", 2, 2),
    "gpt-fsdp": ("gpt", "fsdp", 4, 2),
    "gpt-hsdp": ("gpt", "hsdp", 4, 1),
    "gpt-recompute-ddp": ("gpt-recompute", "ddp", 2, 2),
    "gpt-checkpoint-wrapper": ("gpt", "wrapped_recompute", 2, 2),
    "gpt-tp": ("gpt", "tensor_parallel", 2, 1),
    "gpt-tp-microbatches": ("gpt", "tensor_parallel", 4, 2),
    "mlp-ddp": ("mlp", "ddp", 4, 1),
    "mlp-fsdp": ("mlp", "fsdp", 4, 2),
    "mlp-hsdp": ("mlp", "hsdp", 4, 1),
    "mlp-uneven-tp": ("mlp", "uneven_tensor_parallel", 2, 2),
    "split-by-hand": ("split", "by_hand", 2, 2),
    "convolutions-ddp": ("convolutions", "ddp", 2, 2),
    "convolutions-fsdp": ("convolutions", "fsdp", 2, 1),
}
# torch refuses to add up the norms of DTensors and plain tensors, which the others mix
CLIPPED = {"mlp", "convolutions"}
SPLITS_BATCH = {"ddp", "fsdp", "hsdp", "wrapped_recompute"}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name.startswith("gpt"):
        return Gpt(recompute="module" if name == "gpt-recompute" else "")
    models = {"mlp": Mlp, "split": SplitByHand, "convolutions": Convolutions}
    return models[name]()


def samples(name: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    if name.startswith("gpt"):
        tokens = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]
    shape = (BATCH, 3, 6, 6) if name == "convolutions" else (BATCH, LENGTH, WIDTH)
    return torch.randn(shape, generator=generator), torch.randint(
        5, (BATCH,) if name == "convolutions" else (BATCH, LENGTH), generator=generator
    )


def train(name: str, layout: str, microbatches: int, dtype: str) -> None:
    model: Any = build(name).to(getattr(torch, dtype))
    inputs, labels = samples(name)
    if inputs.is_floating_point():
        inputs = inputs.to(getattr(torch, dtype))
    if layout:
        model = globals()[layout](model)
    if layout in SPLITS_BATCH:
        # Interleaved, as a distributed sampler deals samples out.
        rank, size = dist.get_rank(), dist.get_world_size()
        inputs, labels = inputs[rank::size], labels[rank::size]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        for x, y in zip(inputs.chunk(microbatches), labels.chunk(microbatches), strict=True):
            if name.startswith("gpt"):
                loss = model(x, labels=y)["loss"]
            else:
                logits = model(x)
                loss = F.cross_entropy(logits.flatten(0, -2).float(), y.flatten())
            (loss / microbatches).backward()
        if layout == "by_hand":
            for parameter in model.norm.parameters():
                dist.all_reduce(parameter.grad)
        if name in CLIPPED:
            clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, Path]]:
    made: dict[tuple[str, str], tuple[Path, Path]] = {}

    def make(name: str, dtype: str) -> tuple[Path, Path]:
        if (name, dtype) not in made:
            folder = tmp_path_factory.mktemp("reference")
            plain = Settings(folder=folder / "plain")
            noisy = Settings(folder=folder / "noisy", noise_seed=1)
            for settings in (plain, noisy):
                with mock.patch.dict(os.environ, settings.to_environment()):
                    train(name, "", 1, dtype)
            made[name, dtype] = folder / "plain", folder / "noisy"
        return made[name, dtype]

    return make


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_correct_model_passes(
    case: str,
    dtype: str,
    pool: WorkerPool,
    reference: Callable[[str, str], tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    name, layout, ranks, microbatches = CASES[case]
    plain, noisy = reference(name.removesuffix("-recompute"), dtype)
    folder = tmp_path / "candidate"
    environment = Settings(folder=folder).to_environment()
    pool.run(ranks, train, name, layout, microbatches, dtype, environment=environment)
    result = check(plain, folder, perturbed=[noisy])
    assert result.exit_code == 0, explain(result)
    assert result.compared > 10
    kinds = {found.id.kind for found in result.tensors}
    assert Kind.GRAD in kinds
    assert ({Kind.GRAD_NORM, Kind.CLIPPED_GRAD} <= kinds) == (name in CLIPPED)
