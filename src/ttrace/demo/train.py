"""The demo's training job, traced by TTrace in three lines.

    $ python -m ttrace.demo.train --dp 2 --tp 2 --microbatches 2
    step 0: loss 5.986563

Enters: a layout on the command line. Leaves: the loss of every step, on rank 0's output. One
process trains here; more are started as gloo processes on this machine, and all of them end when
one fails. Every layout trains the same model on the same global batches, so two layouts must agree
up to rounding unless `--bug` plants a mistake.
"""

import argparse
import logging
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import (
    ProcessExitedException,
    ProcessRaisedException,
    start_processes,
)
from torch.nn import functional as F
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

import ttrace
from ttrace.demo.bugs import BUGS, DemoBug, find_bug
from ttrace.demo.model import ModelConfig, build_model
from ttrace.demo.parallel import DataParallel, parallelize

# chosen small, and divisible by dp 4 x 2 microbatches
SEQUENCE = 32
# customary; the demo's gradients have a norm of about 2
MAX_NORM = 1.0
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# a collective whose peer died must fail well within a CI job; a step takes under a second
COLLECTIVE_TIMEOUT = timedelta(seconds=60)

Microbatch = tuple[Tensor, Tensor]
StartMethod = Literal["fork", "spawn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One run: what is trained, in which layout, with which mistake."""

    dp: int = 1
    tp: int = 1
    microbatches: int = 2
    dtype: str = "float32"
    layers: int = 3
    dim: int = 64
    samples: int = 8
    tied: bool = False
    sequence_parallel: bool = True
    data_parallel: DataParallel = "fsdp"
    steps: int = 1
    seed: int = 0
    bug: str | None = None
    port: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        if min(self.dp, self.tp, self.microbatches, self.layers, self.steps) < 1:
            raise ValueError("dp, tp, microbatches, layers and steps must be at least 1")
        if self.samples % (self.dp * self.microbatches):
            raise ValueError(
                f"a global batch of {self.samples} does not split into dp {self.dp} x "
                f"{self.microbatches} microbatches"
            )
        if self.planted and (needs := unmet_needs(self.planted, self)):
            raise ValueError(f"bug {self.bug} cannot show itself here: it needs {needs}")

    @property
    def world_size(self) -> int:
        return self.dp * self.tp

    @property
    def planted(self) -> DemoBug | None:
        return find_bug(self.bug) if self.bug else None


def unmet_needs(bug: DemoBug, config: TrainConfig) -> str:
    """What the layout lacks for the bug to change any number; empty when it lacks nothing."""
    sharded = config.tp > 1 or (config.dp > 1 and config.data_parallel == "fsdp")
    needs = {
        f"--dp {bug.min_dp}": config.dp < bug.min_dp,
        f"--tp {bug.min_tp}": config.tp < bug.min_tp,
        f"--microbatches {bug.min_microbatches}": config.microbatches < bug.min_microbatches,
        f"--layers {bug.min_layers}": config.layers < bug.min_layers,
        "sequence parallelism": bug.needs_sequence_parallel and not config.sequence_parallel,
        "sharded parameters (tp or fsdp)": bug.needs_sharded_parameters and not sharded,
    }
    return ", ".join(need for need, is_unmet in needs.items() if is_unmet)


def train(config: TrainConfig, mesh: DeviceMesh | None = None) -> None:
    """The training loop of one rank; `mesh` is None in a run of one process."""
    model, optimizer = build(config, mesh)
    tracer = ttrace.attach(model, optimizer)
    for step in range(config.steps):
        with tracer.step():
            loss = forward_backward(model, optimizer, microbatches(config, mesh, step), config)
            clip_gradients(model, local=bool(config.planted and config.planted.clips_by_local_norm))
            optimizer.step()
            optimizer.zero_grad()
        write_loss(step, loss, mesh)


def build(
    config: TrainConfig, mesh: DeviceMesh | None = None
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The parallel model and its optimizer, with the bug planted if one is named."""
    sizes = ModelConfig(
        n_layers=config.layers, tied=config.tied, dim=config.dim, hidden_dim=2 * config.dim
    )
    whole = build_model(sizes, seed=config.seed, dtype=DTYPES[config.dtype]).to(config.device)
    model: nn.Module = whole
    optimized = list(whole.parameters())
    if mesh is not None:
        model = parallelize(
            whole,
            mesh,
            sequence_parallel=config.sequence_parallel,
            data_parallel=config.data_parallel,
        )
        if config.planted and config.planted.plant:
            config.planted.plant(model, mesh)
    if not (config.planted and config.planted.optimizer_before_parallel):
        optimized = list(model.parameters())
    return model, torch.optim.AdamW(optimized, lr=1e-3, eps=1e-8)


def microbatches(config: TrainConfig, mesh: DeviceMesh | None, step: int) -> list[Microbatch]:
    """This rank's contiguous samples of the step's global batch; tp ranks share theirs."""
    generator = torch.Generator().manual_seed(config.seed * 100_003 + step)
    shape = (config.samples, SEQUENCE + 1)
    tokens = torch.randint(ModelConfig().vocab_size, shape, generator=generator).to(config.device)
    mine = tokens.chunk(config.dp)[mesh.get_local_rank("dp") if mesh else 0]
    return [(part[:, :-1], part[:, 1:]) for part in mine.chunk(config.microbatches)]


def forward_backward(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Microbatch],
    config: TrainConfig,
) -> Tensor:
    """Accumulates the gradients of all microbatches; returns the rank's mean loss."""
    total = torch.zeros((), device=config.device)
    for index, (tokens, targets) in enumerate(batches):
        if config.planted and config.planted.zero_grad_each_microbatch:
            optimizer.zero_grad()
        with gradient_reduction(model, is_last=index == len(batches) - 1):
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()) / len(batches)
            loss.backward()
        total += loss.detach()
    return total


def gradient_reduction(model: nn.Module, *, is_last: bool) -> AbstractContextManager[None]:
    """DDP reduces after the last microbatch; FSDP2, as in torchtitan, after each."""
    if isinstance(model, nn.parallel.DistributedDataParallel) and not is_last:
        return model.no_sync()
    return nullcontext()


def clip_gradients(model: nn.Module, *, local: bool = False) -> None:
    """By the norm over all ranks; torch adds up only parameters of one mesh, so mesh by mesh."""
    groups: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    norms = [group_norm(group, local=local) for group in groups.values()]
    total = torch.linalg.vector_norm(torch.stack(norms))
    for group in groups.values():
        clip_grads_with_norm_(group, MAX_NORM, total)


def group_norm(group: Sequence[nn.Parameter], *, local: bool) -> Tensor:
    gradients = [parameter.grad for parameter in group if parameter.grad is not None]
    if local:
        gradients = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
    norm = get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def write_loss(step: int, loss: Tensor, mesh: DeviceMesh | None) -> None:
    """Rank 0 writes the mean over dp."""
    if mesh is not None:
        dist.all_reduce(loss, group=mesh.get_group("dp"))
        loss = loss / mesh["dp"].size()
    if mesh is None or mesh.get_rank() == 0:
        sys.stdout.write(f"step {step}: loss {loss.item():.6f}\n")
        sys.stdout.flush()


def prepare_process(config: TrainConfig) -> None:
    """One thread, so that sums have one order; and nothing on stderr that is no fault."""
    torch.set_num_threads(1)
    if config.dtype == "bfloat16":
        # oneDNN multiplies bfloat16 with AMX where the CPU announces it; a virtual machine may
        # announce it and still kill the process with an illegal instruction
        torch.backends.mkldnn.set_flags(False)
    # the logits are a view, as the warning says, but nobody changes them in place
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    # the norm is summed over two mesh axes, one after the other; that is slow on a cluster only
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


def run_rank(rank: int, config: TrainConfig, init_method: str) -> None:
    """Everything one process does, from joining the group to leaving it."""
    prepare_process(config)
    dist.init_process_group(
        "gloo",
        init_method=init_method,
        rank=rank,
        world_size=config.world_size,
        timeout=COLLECTIVE_TIMEOUT,
    )
    try:
        sizes = (config.dp, config.tp)
        train(config, init_device_mesh(config.device, sizes, mesh_dim_names=("dp", "tp")))
    finally:
        dist.destroy_process_group()


def launch(config: TrainConfig, *, start_method: StartMethod = "spawn") -> None:
    """Trains in this process or in `world_size` new ones, and raises if any of them failed."""
    if config.world_size == 1:
        prepare_process(config)
        train(config)
        return
    if start_method == "fork":
        # every rank would import it by itself otherwise: DTensor and optimizers do, on first use
        import_module("torch._dynamo")
    with tempfile.TemporaryDirectory(prefix="ttrace-demo-") as folder:
        rendezvous = (Path(folder) / "rendezvous").as_uri()
        if config.port is not None:
            rendezvous = f"tcp://127.0.0.1:{config.port}"
        # join=True ends the other ranks as soon as one fails, so none waits for a dead peer
        start_processes(
            run_rank,
            (config, rendezvous),
            nprocs=config.world_size,
            join=True,
            start_method=start_method,
        )


def parse(arguments: Sequence[str] | None = None) -> TrainConfig:
    """The command line as a config; the fields of `TrainConfig` are its defaults."""
    default = TrainConfig()
    parser = argparse.ArgumentParser(prog="python -m ttrace.demo.train", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for name in ("dp", "tp", "microbatches", "layers", "dim", "samples", "steps", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(default, name), metavar="N")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default=default.dtype)
    parser.add_argument("--device", choices=["cpu", "cuda"], default=default.device)
    parser.add_argument("--tied", action="store_true", help="share embedding and output weights")
    parser.add_argument("--no-sequence-parallel", action="store_false", dest="sequence_parallel")
    parser.add_argument("--data-parallel", choices=get_args(DataParallel), default="fsdp")
    parser.add_argument("--bug", choices=[bug.name for bug in BUGS], help="plant this mistake")
    parser.add_argument("--port", type=int, help="rendezvous over TCP instead of over a file")
    options = parser.parse_args(arguments)
    try:
        return TrainConfig(**vars(options))
    except ValueError as error:
        parser.error(str(error))


def main(arguments: Sequence[str] | None = None, *, start_method: StartMethod = "spawn") -> int:
    """0 when every rank ended well, 1 when one failed; usage errors leave with 2."""
    config = parse(arguments)
    try:
        launch(config, start_method=start_method)
    except (ProcessRaisedException, ProcessExitedException) as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    return 0


if __name__ == "__main__":
    # Forked ranks share the imports, more than half of a spawned run's time. Safe only in a fresh
    # process, before torch has started threads.
    on_cuda = "cuda" in sys.argv  # whose context does not survive a fork
    sys.exit(main(start_method="fork" if sys.platform == "linux" and not on_cuda else "spawn"))
