"""The mean loss of an unevenly sharded DTensor is a mean of the ranks' means."""

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
    value, target = torch.tensor([0.0, 0.0, 9.0]), torch.zeros(3)  # two rows, and one
    shards = [distribute_tensor(each, mesh, [Shard(0)]) for each in (value, target)]
    loss = F.binary_cross_entropy_with_logits
    found, right = loss(*shards).full_tensor(), loss(value, target)
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
