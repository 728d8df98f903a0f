"""What scripts with Megatron-Core share: the layers of a small GPT, and one step of its training.

All of it is to be called `with on_cpu()`, as it would be called on GPUs.
"""

import sys
from pathlib import Path

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

    from zoo.megatron.modules import SequenceParallelNorm


def start(**split):
    """The layout of two layers over all ranks, and the configuration of the model."""
    layout = gpt.Layout(**split, layers=2, microbatches=2)
    dist.init_process_group("gloo")
    gpt.initialise(layout)
    return layout, gpt.configure(layout)


def make_layers(config):
    """The description of the model's layers, with norms that do without a GPU."""
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization="RMSNorm"
    )
    block.layer_norm = SequenceParallelNorm
    for spec in block.layer_specs:
        spec.submodules.input_layernorm = SequenceParallelNorm
        spec.submodules.pre_mlp_layernorm = SequenceParallelNorm
    return block


def make_gpt(layout, config, block, *, ties=True, **options):
    return GPTModel(
        config=config,
        transformer_layer_spec=block,
        vocab_size=layout.padded,
        max_sequence_length=layout.length,
        share_embeddings_and_output_weights=ties,
        position_embedding_type="rope",
        **options,
    )


def train(layout, config, model, forward_step):
    """One step of the model under the package's schedule, then the end of all groups."""
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
