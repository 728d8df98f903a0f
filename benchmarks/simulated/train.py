"""One step of a small transformer on a mesh of data-parallel and tensor-parallel ranks, with bugs.

left out          one data-parallel rank brings zeros to the reduction of gradients
wrong slice       one tensor-parallel rank holds the slice of its neighbour
skipped update    one data-parallel rank drops its gradients before the update, so it makes none
"""

from enum import StrEnum

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace
from ttrace.demo.model import ModelConfig, Transformer, build_model
from ttrace.demo.parallel import shard_over, tensor_parallel
from ttrace.demo.train import TrainConfig, prepare_process

SAMPLES, LENGTH = 64, 16  # chosen: one sample for each of 64 data-parallel ranks
MODEL = ModelConfig(n_layers=2, n_heads=4, n_kv_heads=4)  # chosen: heads for four ranks
WRONG_RANK = 37  # chosen: any of 64 but the first; of fewer ranks what is left of it
WRONG_MODULE = "layers.1.feed_forward.w1"


class Bug(StrEnum):
    """What is wrong on one rank."""

    LEFT_OUT = "left out"
    WRONG_SLICE = "wrong slice"
    SKIPPED_UPDATE = "skipped update"


def train(dp: int = 1, tp: int = 1, bug: str | None = None) -> None:
    prepare_process(TrainConfig())
    whole = build_model(MODEL, seed=1)
    tokens = torch.randint(
        MODEL.vocab_size, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(2)
    )
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    is_wrong = dist.get_rank() == WRONG_RANK % (dp * tp)
    model = _spread(whole, mesh, bug=bug if is_wrong else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tracer = ttrace.attach(model, optimizer)
    mine = tokens.chunk(dp)[mesh.get_local_rank("dp")]
    with tracer.step():
        logits = model(mine)
        F.cross_entropy(logits[:, :-1].flatten(0, 1), mine[:, 1:].flatten()).backward()
        if is_wrong and bug == Bug.SKIPPED_UPDATE:
            optimizer.zero_grad()
        optimizer.step()


def _spread(model: Transformer, mesh: DeviceMesh, *, bug: str | None) -> nn.Module:
    dp, tp = mesh["dp"], mesh["tp"]
    if tp.size() > 1:
        slices = model.get_parameter(f"{WRONG_MODULE}.weight").detach().clone().chunk(tp.size())
        tensor_parallel(model, tp, sequence_parallel=False)
        if bug == Bug.WRONG_SLICE:
            weight: Tensor = model.get_parameter(f"{WRONG_MODULE}.weight")
            assert isinstance(weight, DTensor)
            with torch.no_grad():
                weight.to_local().copy_(slices[(tp.get_local_rank() + 1) % tp.size()])
        return shard_over(model, dp)
    if dp.size() == 1:
        return model
    replicated = DistributedDataParallel(model, process_group=dp.get_group())
    replicated.register_comm_hook(bug, _reduce)
    return replicated


def _reduce(
    bug: str | None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    gradients = bucket.buffer().div_(dist.get_world_size())
    if bug == Bug.LEFT_OUT:
        gradients.zero_()
    work = dist.all_reduce(gradients, async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])
