"""The 8-bit AdamW of torchao keeps the state of a parameter in fp32 once it is sharded."""

import multiprocessing
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchao.optim import AdamW8bit


def main(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    kinds = []
    for shape in ((2, 1), (1, 2)):  # replicas and shards: whole on each rank, then split
        model = nn.Linear(1024, 6, bias=False)
        fully_shard(model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=("r", "s")))
        optimizer = AdamW8bit(model.parameters())
        model(torch.ones(1, 1024)).sum().backward()
        with torch.compiler.set_stance("force_eager"):
            optimizer.step()
        state = next(iter(optimizer.state.values()))["exp_avg"]
        kinds.append(type(state.to_local()).__name__)
    if rank == 0:
        print(f"state of the whole parameter: {kinds[0]}, of its shards: {kinds[1]}")
    sys.exit(int(kinds[0] == kinds[1]))


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [fork.Process(target=main, args=(rank, f"{folder}/store")) for rank in (0, 1)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    sys.exit(max(process.exitcode for process in ranks))
