"""Megatron-Core: a hybrid, one of whose layers is a GatedDeltaNet, tensor and sequence parallel.

Without flash-linear-attention its kernels are those that the package has in plain torch.
"""

import copy
import os
import sys
from dataclasses import replace
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
    from megatron.core.ssm import gated_delta_net
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.spec_utils import ModuleSpec

    from zoo.megatron.modules import SequenceParallelNorm

    world = int(os.environ["WORLD_SIZE"])
    layout = gpt.Layout(tp=world, sp=world > 1, layers=2, microbatches=2)
    dist.init_process_group("gloo")
    gpt.initialise(layout)

    gated_delta_net.HAVE_FLA = True
    gated_delta_net.l2norm = partial(torch.nn.functional.normalize, dim=-1)
    gated_delta_net.chunk_gated_delta_rule = partial(
        gated_delta_net.torch_chunk_gated_delta_rule, chunk_size=8
    )

    config = replace(
        gpt.configure(layout),
        qk_layernorm=True,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
    )
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization="RMSNorm"
    )
    block.layer_norm = SequenceParallelNorm
    for spec in block.layer_specs:
        spec.submodules.input_layernorm = SequenceParallelNorm
        spec.submodules.pre_mlp_layernorm = SequenceParallelNorm
    attention = block.layer_specs[0].submodules.self_attention.submodules
    attention.q_layernorm = attention.k_layernorm = SequenceParallelNorm
    block.layer_specs[1] = copy.deepcopy(block.layer_specs[1])
    block.layer_specs[1].submodules.self_attention = ModuleSpec(
        module=gated_delta_net.GatedDeltaNet,
        submodules=gated_delta_net.GatedDeltaNetSubmodules(
            in_proj=ColumnParallelLinear, out_norm=SequenceParallelNorm, out_proj=RowParallelLinear
        ),
    )
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
            forward_step_func=partial(gpt.forward_step, layout),
            data_iterator=gpt.batches(layout, 0),
            model=chunks,
            num_microbatches=layout.microbatches,
            seq_length=layout.length,
            micro_batch_size=layout.micro_batch,
        )
        optimizer.step()

    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
