"""Megatron-Core: a hybrid, one of whose layers is a GatedDeltaNet, tensor and sequence parallel.

Without flash-linear-attention its kernels are those that the package has in plain torch.
"""

import copy
import os
from dataclasses import replace
from functools import partial

import torch
from megatron_team import (
    SequenceParallelNorm,
    gpt,
    make_gpt,
    make_layers,
    on_cpu,
    start,
    train,
)

with on_cpu():
    from megatron.core.ssm import gated_delta_net
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.spec_utils import ModuleSpec

    world = int(os.environ["WORLD_SIZE"])
    layout, config = start(tp=world, sp=world > 1)

    gated_delta_net.HAVE_FLA = True
    gated_delta_net.l2norm = partial(torch.nn.functional.normalize, dim=-1)
    gated_delta_net.chunk_gated_delta_rule = partial(
        gated_delta_net.torch_chunk_gated_delta_rule, chunk_size=8
    )

    config = replace(
        config,
        qk_layernorm=True,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
    )
    block = make_layers(config)
    attention = block.layer_specs[0].submodules.self_attention.submodules
    attention.q_layernorm = attention.k_layernorm = SequenceParallelNorm
    block.layer_specs[1] = copy.deepcopy(block.layer_specs[1])
    block.layer_specs[1].submodules.self_attention = ModuleSpec(
        module=gated_delta_net.GatedDeltaNet,
        submodules=gated_delta_net.GatedDeltaNetSubmodules(
            in_proj=ColumnParallelLinear, out_norm=SequenceParallelNorm, out_proj=RowParallelLinear
        ),
    )
    model = make_gpt(layout, config, block)
    train(layout, config, model, partial(gpt.forward_step, layout))
