"""Label smoothing in Megatron-Core takes each rank's part for the whole vocabulary."""

import multiprocessing
import sys
import tempfile

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy


def main(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    logits, label = torch.tensor([[[0.0, 1.0, 2.0, 3.0]]]), torch.tensor([[0]])
    losses = []
    for size in (1, 2):
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
        part = logits.chunk(size, -1)[parallel_state.get_tensor_model_parallel_rank()].clone()
        with torch.compiler.set_stance("force_eager"):
            losses.append(vocab_parallel_cross_entropy(part, label, 0.1).item())
        parallel_state.destroy_model_parallel()
    print(f"rank {rank}: loss {losses[1]:.4f}, right (without TP) {losses[0]:.4f}")
    sys.exit(int(abs(losses[1] - losses[0]) < 1e-5))


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [fork.Process(target=main, args=(rank, f"{folder}/store")) for rank in (0, 1)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    sys.exit(max(process.exitcode for process in ranks))
