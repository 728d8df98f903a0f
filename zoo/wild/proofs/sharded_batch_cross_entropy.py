"""The mean cross-entropy of a sharded batch is a mean of each rank's mean."""

import multiprocessing
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def main(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    logits = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0]])
    labels = torch.tensor([0, 0, 0, -100])  # rank 1 has one label to learn from, rank 0 has two
    shards = [distribute_tensor(each, mesh, [Shard(0)]) for each in (logits, labels)]
    found, right = F.cross_entropy(*shards).full_tensor(), F.cross_entropy(logits, labels)
    if rank == 0:
        print(f"loss {found.item():.4f}, right {right.item():.4f}")
    sys.exit(int(torch.allclose(found, right)))


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [fork.Process(target=main, args=(rank, f"{folder}/store")) for rank in (0, 1)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    sys.exit(max(process.exitcode for process in ranks))
