"""Megatron-Core: a language model that reads pictures, tensor and sequence parallel.

The embedding of the text stays whole, so that pictures can take the place of some tokens in it.
"""

import os
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

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
    from megatron.core.tensor_parallel import scatter_to_sequence_parallel_region
    from megatron.core.transformer.enums import ModelType
    from megatron.core.transformer.module import MegatronModule

    from zoo.megatron.modules import SequenceParallelNorm

PATCHES, PIXELS = 4, 12  # of a picture, which stands at the beginning


class PictureModel(MegatronModule):
    model_type = ModelType.encoder_or_decoder

    def __init__(self, config, block, layout):
        super().__init__(config)
        self.language_model = GPTModel(
            config=config,
            transformer_layer_spec=block,
            vocab_size=layout.padded,
            max_sequence_length=layout.length,
            share_embeddings_and_output_weights=False,
            position_embedding_type="rope",
            scatter_embedding_sequence_parallel=False,
        )
        self.projection = torch.nn.Linear(PIXELS, config.hidden_size)

    def set_input_tensor(self, tensor):
        self.language_model.set_input_tensor(tensor[0] if isinstance(tensor, list) else tensor)

    def forward(self, tokens, positions, pictures, mask, labels):
        text = self.language_model.embedding(tokens, positions)
        patches = self.projection(pictures).transpose(0, 1)
        hidden = torch.cat([patches, text[PATCHES:]])
        if self.config.sequence_parallel:
            hidden = scatter_to_sequence_parallel_region(hidden)
        return self.language_model(None, None, mask, decoder_input=hidden, labels=labels)


def forward_step(layout, data, model):
    batch = next(data)
    pictures = torch.stack([torch.sin(row[0] + torch.arange(48.0)) for row in batch["tokens"]])
    causal = torch.ones(layout.length, layout.length, dtype=torch.bool).triu(1)[None, None]
    losses = model(
        batch["tokens"],
        batch["position_ids"],
        pictures.view(-1, PATCHES, PIXELS),
        causal,
        batch["labels"],
    )
    batch["loss_mask"][:, :PATCHES] = 0
    return losses, partial(gpt.loss_of, layout, batch["loss_mask"])


with on_cpu():
    world = int(os.environ["WORLD_SIZE"])
    layout = gpt.Layout(tp=world, sp=world > 1, layers=2, microbatches=2)
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
    model = PictureModel(config, block, layout)
    chunks = [DistributedDataParallel(config, DistributedDataParallelConfig(), model)]
    config.finalize_model_grads_func = finalize_model_grads
    ttrace.generate_parameters(chunks)
    optimizer = gpt.build_optimizer(layout, chunks)
    tracer = ttrace.attach(chunks, optimizer)

    with tracer.step():
        chunks[0].zero_grad_buffer()
        get_forward_backward_func()(
            forward_step_func=partial(forward_step, layout),
            data_iterator=gpt.batches(layout, 0),
            model=chunks,
            num_microbatches=layout.microbatches,
            seq_length=layout.length,
            micro_batch_size=layout.micro_batch,
        )
        optimizer.step()

    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
