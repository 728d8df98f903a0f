"""fill_ of a DTensor that is still to be summed fills it on every rank: 2 for 1 in all."""

import multiprocessing
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def main(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    value, label = torch.ones(1, 4), torch.ones(1)
    x = distribute_tensor(value, mesh, [Shard(1)])
    found = F.cosine_embedding_loss(x, x, distribute_tensor(label, mesh, [Replicate()]))
    found, filled = found.full_tensor().item(), x.sum(1).fill_(1.0).full_tensor().item()
    if rank == 0:
        print(f"loss of equal vectors {found:.4f}, right 0; filled with 1: {filled}, right 1.0")
    sys.exit(int(abs(found) < 1e-5 and filled == 1.0))


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [fork.Process(target=main, args=(rank, f"{folder}/store")) for rank in (0, 1)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    sys.exit(max(process.exitcode for process in ranks))
