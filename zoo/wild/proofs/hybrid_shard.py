"""FSDP1 with HYBRID_SHARD on a mesh of (2, 1): gradients are not reduced at all."""

import multiprocessing
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy


def main(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    model = FullyShardedDataParallel(
        nn.Linear(1, 1, bias=False),
        device_mesh=mesh,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_id=torch.device("cpu"),
    )
    model(torch.full((1, 1), 1.0 + 2 * rank)).sum().backward()  # 1 and 3: their mean is 2
    found = next(model.parameters()).grad.item()
    print(f"rank {rank}: gradient {found}, right 2.0")
    sys.exit(int(found == 2.0))


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [fork.Process(target=main, args=(rank, f"{folder}/store")) for rank in (0, 1)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    sys.exit(max(process.exitcode for process in ranks))
