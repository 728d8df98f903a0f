"""Losses with a mean on a sharded DTensor: the gradient is twice too large on two ranks."""

import multiprocessing
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

LOSSES = (
    *(F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy, F.soft_margin_loss),
)


def main(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    value, target = torch.tensor([0.2, 0.4, 0.6, 0.8]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    wrong = []
    for loss in LOSSES:
        x = distribute_tensor(value, mesh, [Shard(0)]).requires_grad_()
        loss(x, distribute_tensor(target, mesh, [Shard(0)])).backward()
        right = value.clone().requires_grad_()
        loss(right, target).backward()
        found = x.grad.full_tensor()
        wrong.append(not torch.allclose(found, right.grad))
        if rank == 0:
            print(f"{loss.__name__}: gradient {found.tolist()}, right {right.grad.tolist()}")
    sys.exit(int(not any(wrong)))


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [fork.Process(target=main, args=(rank, f"{folder}/store")) for rank in (0, 1)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    sys.exit(max(process.exitcode for process in ranks))
