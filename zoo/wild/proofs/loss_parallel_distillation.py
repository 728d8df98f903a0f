"""Inside loss_parallel the gradient of log_softmax is that of the identity."""

import multiprocessing
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel


def main(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    value, weight = torch.tensor([[0.0, 1.0, 2.0, 3.0]]), torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    x = distribute_tensor(value, mesh, [Shard(1)]).requires_grad_()
    with loss_parallel():
        (x.log_softmax(-1) * distribute_tensor(weight, mesh, [Shard(1)])).sum().backward()
    right = value.clone().requires_grad_()
    (right.log_softmax(-1) * weight).sum().backward()
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
