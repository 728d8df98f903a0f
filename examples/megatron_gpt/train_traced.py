"""Train a small GPT with Megatron-Core; every field of gpt.Layout is a flag.

torchrun --standalone --nproc-per-node 4 SCRIPT --tp 2 --sp --pp 2
"""

from functools import partial
from typing import Any

from gpt import Layout, batches, build, build_optimizer, forward_step, per_rank, run
from megatron.core.pipeline_parallel import get_forward_backward_func

import ttrace


def train(layout: Layout) -> None:
    model, _ = build(layout)
    optimizer = build_optimizer(layout, model)
    tracer = ttrace.attach(model, optimizer)
    for number in range(layout.steps):
        with tracer.step():
            step(layout, number, model, optimizer)


def step(layout: Layout, number: int, model: list[Any], optimizer: Any) -> None:
    for chunk in model:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    get_forward_backward_func()(
        forward_step_func=partial(forward_step, layout),
        data_iterator=[batches(layout, number) for _ in model],
        model=model,
        num_microbatches=per_rank(layout),
        seq_length=layout.length,
        micro_batch_size=layout.micro_batch,
    )
    optimizer.step()


if __name__ == "__main__":
    run(train)
