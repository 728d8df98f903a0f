"""The gradient of torch.distributed.nn.functional.all_gather on gloo, if it is transposed."""

import multiprocessing
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_gather


def main(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    weight = torch.arange(12.0).view(2, 6)
    x = torch.zeros(3, 2, requires_grad=True)
    (torch.cat(all_gather(x)).T * weight).sum().backward()
    right = 2 * weight.T[3 * rank : 3 * rank + 3]  # once from each rank
    print(f"rank {rank}: gradient {x.grad.tolist()}, right {right.tolist()}")
    sys.exit(int(torch.equal(x.grad, right)))


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [fork.Process(target=main, args=(rank, f"{folder}/store")) for rank in (0, 1)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    sys.exit(max(process.exitcode for process in ranks))
