"""The gradient of the largest absolute value of a sharded DTensor."""

import multiprocessing
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def main(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    value = torch.tensor([[1.0, 2.0], [3.0, 4.0]])  # the largest is on rank 1
    x = distribute_tensor(value, mesh, [Shard(0)]).requires_grad_()
    x.norm(float("inf")).full_tensor().backward()
    right = value.clone().requires_grad_()
    right.norm(float("inf")).backward()
    found = x.grad.full_tensor()
    if rank == 0:
        print(f"gradient {found.tolist()}, right {right.grad.tolist()}")
    sys.exit(int(torch.allclose(found, right.grad)))


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [fork.Process(target=main, args=(rank, f"{folder}/store")) for rank in (0, 1)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    sys.exit(max(process.exitcode for process in ranks))
