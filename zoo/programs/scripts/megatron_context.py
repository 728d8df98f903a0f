"""Megatron-Core with a context-parallel attention of one's own: every rank gathers all keys."""

import os
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import ttrace

sys.path.append(str(Path(__file__).parents[3] / "examples" / "megatron_gpt"))
from zoo.megatron.cpu import on_cpu

with on_cpu():
    import gpt
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.pipeline_parallel import get_forward_backward_func

    from zoo.megatron.modules import SequenceParallelNorm


class Gather(torch.autograd.Function):
    """All ranks' part of the sequence, rank after rank; each gets back the gradient of its own."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad.chunk(ctx.group.size())[ctx.group.rank()], None


class GatheredAttention(nn.Module):
    def __init__(self, config, layer_number, pg_collection, **kwargs):
        super().__init__()
        self.scale = config.kv_channels**-0.5
        self.group = pg_collection.cp

    def positions(self, length):
        """Of the tokens of all ranks: each has one chunk from the front and one from the back."""
        world = self.group.size()
        chunks = torch.arange(length * world).chunk(2 * world)
        return [torch.cat([chunks[rank], chunks[-1 - rank]]) for rank in range(world)]

    def forward(self, query, key, value, attention_mask, **kwargs):
        positions = self.positions(len(query))
        key, value = Gather.apply(key, self.group), Gather.apply(value, self.group)
        repeat = query.size(2) // key.size(2)
        key, value = (x.repeat_interleave(repeat, dim=2) for x in (key, value))
        scores = torch.einsum("qbhd,kbhd->bhqk", query, key) * self.scale
        hidden = torch.cat(positions)[None, :] > positions[self.group.rank()][:, None]
        scores = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.einsum("bhqk,kbhd->qbhd", scores, value).flatten(2)


def loss_function(loss_mask, losses):
    total = torch.stack([(losses * loss_mask).sum().view(1), loss_mask.sum().view(1)])
    count = total[1].detach()
    dist.all_reduce(count, group=parallel_state.get_context_parallel_group())
    return total[0] / count, {}


def forward_step(data, model):
    batch = next(data)
    losses = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return losses, partial(loss_function, batch["loss_mask"])


with on_cpu():
    layout = gpt.Layout(cp=int(os.environ["WORLD_SIZE"]), layers=2, microbatches=2)
    dist.init_process_group("gloo")
    gpt.initialise(layout)
    config = gpt.configure(layout)
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization="RMSNorm"
    )
    block.layer_norm = SequenceParallelNorm
    for spec in block.layer_specs:
        spec.submodules.input_layernorm = SequenceParallelNorm
        spec.submodules.pre_mlp_layernorm = SequenceParallelNorm
        spec.submodules.self_attention.submodules.core_attention = GatheredAttention
    model = GPTModel(
        config=config,
        transformer_layer_spec=block,
        vocab_size=layout.padded,
        max_sequence_length=layout.length,
        share_embeddings_and_output_weights=True,
        position_embedding_type="rope",
    )
    chunks = [DistributedDataParallel(config, DistributedDataParallelConfig(), model)]
    config.finalize_model_grads_func = finalize_model_grads
    ttrace.generate_parameters(chunks)
    optimizer = gpt.build_optimizer(layout, chunks)
    tracer = ttrace.attach(chunks, optimizer)

    with tracer.step():
        chunks[0].zero_grad_buffer()
        get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=gpt.batches(layout, 0),
            model=chunks,
            num_microbatches=layout.microbatches,
            seq_length=layout.length,
            micro_batch_size=layout.micro_batch,
        )
        optimizer.step()

    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
