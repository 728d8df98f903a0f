"""The first step of a pipeline counts one batch too many in BatchNorm."""

import multiprocessing
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


def main(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = nn.BatchNorm1d(4)
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    x = torch.randn(8, 4)
    schedule.step(x) if rank == 0 else schedule.step(target=x)
    print(f"rank {rank}: {model.num_batches_tracked.item()} batches were counted, right 2")
    sys.exit(int(model.num_batches_tracked.item() == 2))


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [fork.Process(target=main, args=(rank, f"{folder}/store")) for rank in (0, 1)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    sys.exit(max(process.exitcode for process in ranks))
