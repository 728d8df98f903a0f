"""A small GPT of Megatron-Core in any layout, its optimizer and data: what both scripts share."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ttrace

sys.path.append(str(Path(__file__).parents[2]))  # the zoo is in the repository, not in the wheel
from zoo.megatron import cpu

if not torch.cuda.is_available():
    cpu.install()

from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_gpt_mtp_block_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_batch_on_this_cp_rank

from zoo.megatron.modules import ContextParallelAttention, SequenceParallelNorm

VOCABULARY = 60


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the model and its training are spread over ranks."""

    tp: int = 1
    pp: int = 1
    vpp: int = 0  # model chunks of a pipeline stage; 0: one, without interleaving
    cp: int = 1
    ep: int = 1
    etp: int = 0  # tensor parallel size of experts; 0: as everything else
    sp: bool = False
    zero1: bool = False  # Megatron's distributed optimizer
    overlap: bool = False  # gradients are reduced beside backward
    gather_late: bool = False  # parameters are gathered beside the next forward
    recompute: str = ""  # full or selective
    experts: int = 0
    dispatcher: str = "alltoall"
    z_loss: float = 0.0
    untied: bool = False
    mtp: int = 0
    bf16: bool = False
    per_token: bool = False
    padded: int = 64  # size of the vocabulary, a multiple of tensor parallelism's
    layers: int = 4
    groups: int = 2  # of queries that share keys and values
    first_stage: int = 0  # layers of the first pipeline stage; 0: as many as the others
    batch_p2p: bool = False  # what Megatron does by default, also where gloo cannot
    deallocate: bool = False  # free a stage's output once it is sent
    microbatches: int = 4  # of all data-parallel ranks together
    micro_batch: int = 2
    length: int = 16
    steps: int = 1


def parse() -> Layout:
    """Every field of Layout as a flag."""
    parser = argparse.ArgumentParser()
    for name, default in vars(Layout()).items():
        flag = "--" + name.replace("_", "-")
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(default), default=default)
    return Layout(**vars(parser.parse_args()))


def run(train: Callable[[Layout], None]) -> None:
    """Train in the layout that the command line asks for."""
    layout = parse()
    alone = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": 0}
    for name, value in alone.items():
        os.environ.setdefault(name, str(value))
    dist.init_process_group(choose_device())
    initialise(layout)
    train(layout)
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def choose_device() -> str:
    """NCCL with a GPU of its own for every rank; gloo where ranks share one, or there is none."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % gpus)
    return "nccl" if gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", 1)) else "gloo"


def initialise(layout: Layout) -> None:
    """Megatron's process groups and random numbers."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vpp or None,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp or None,
    )
    model_parallel_cuda_manual_seed(1234)


def configure(layout: Layout) -> TransformerConfig:
    dtype = torch.bfloat16 if layout.bf16 else torch.float32
    moe: dict[str, Any] = {}
    if layout.experts:
        moe = {
            "num_moe_experts": layout.experts,
            "moe_token_dispatcher_type": layout.dispatcher,
            "moe_router_topk": 2,
            "moe_aux_loss_coeff": 0.01,
            "moe_z_loss_coeff": layout.z_loss or None,
            "moe_router_load_balancing_type": "aux_loss",
        }
    recompute: dict[str, Any] = {}
    if layout.recompute == "full":
        recompute = {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 2,
        }
    elif layout.recompute == "selective":
        recompute = {"recompute_granularity": "selective"}
    return TransformerConfig(
        num_layers=layout.layers,
        hidden_size=32,
        num_attention_heads=4,
        num_query_groups=layout.groups,
        ffn_hidden_size=64,
        mtp_num_layers=layout.mtp or None,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        normalization="RMSNorm",
        add_bias_linear=not layout.experts,
        add_qkv_bias=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vpp or None,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp or None,
        sequence_parallel=layout.sp,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=layout.bf16,
        calculate_per_token_loss=layout.per_token,
        overlap_p2p_comm=bool(layout.vpp) and not layout.batch_p2p,
        batch_p2p_comm=layout.batch_p2p or not layout.vpp,
        use_cpu_initialization=True,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        deallocate_pipeline_outputs=layout.deallocate,
        num_layers_in_first_pipeline_stage=layout.first_stage or None,
        **moe,
        **recompute,
    )


def build(layout: Layout) -> tuple[list[DistributedDataParallel], TransformerConfig]:
    """The model chunks of this rank, one for each virtual stage, wrapped for data parallelism."""
    config = configure(layout)
    chunks: list[DistributedDataParallel] = []
    for stage in range(layout.vpp or 1):
        vp_stage = stage if layout.vpp else None
        block = get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vp_stage
        )
        block.layer_norm = SequenceParallelNorm
        for spec in block.layer_specs:
            spec.submodules.input_layernorm = SequenceParallelNorm
            spec.submodules.pre_mlp_layernorm = SequenceParallelNorm
            if layout.cp > 1:
                attention = spec.submodules.self_attention.submodules
                attention.core_attention = ContextParallelAttention
        mtp = None
        if layout.mtp:
            mtp = get_gpt_mtp_block_spec(
                config, block, use_transformer_engine=False, vp_stage=vp_stage
            )
            for spec in mtp.layer_specs if mtp else ():
                for name in ("enorm", "hnorm", "layer_norm"):
                    setattr(spec.submodules, name, SequenceParallelNorm)
        model = GPTModel(
            config=config,
            transformer_layer_spec=block,
            vocab_size=layout.padded,
            max_sequence_length=layout.length,
            pre_process=parallel_state.is_pipeline_first_stage(
                ignore_virtual=False, vp_stage=vp_stage
            ),
            post_process=parallel_state.is_pipeline_last_stage(
                ignore_virtual=False, vp_stage=vp_stage
            ),
            share_embeddings_and_output_weights=not layout.untied,
            position_embedding_type="rope",
            mtp_block_spec=mtp,
            vp_stage=vp_stage,
        )
        chunks.append(
            DistributedDataParallel(
                config,
                DistributedDataParallelConfig(
                    grad_reduce_in_fp32=True,
                    overlap_grad_reduce=layout.overlap,
                    overlap_param_gather=layout.gather_late,
                    use_distributed_optimizer=layout.zero1,
                    bucket_size=2000 if layout.overlap else None,
                ),
                model.cuda(),
                disable_bucketing=stage > 0,
            )
        )
    config.finalize_model_grads_func = finalize_model_grads
    config.no_sync_func = [chunk.no_sync for chunk in chunks] if layout.overlap else None
    if layout.gather_late:
        config.param_sync_func = [chunk.start_param_sync for chunk in chunks]
    for name in ("no_sync_func", "param_sync_func"):
        functions = getattr(config, name)
        if functions and len(functions) == 1:
            setattr(config, name, functions[0])
    ttrace.generate_parameters(chunks)  # the same start in every layout; a checkpoint does as well
    return chunks, config


def build_optimizer(layout: Layout, chunks: list[DistributedDataParallel]) -> Any:
    config = OptimizerConfig(
        optimizer="adam",
        lr=0.01,
        weight_decay=0.01,
        clip_grad=1.0,
        bf16=layout.bf16,
        params_dtype=torch.bfloat16 if layout.bf16 else torch.float32,
        use_distributed_optimizer=layout.zero1,
        overlap_param_gather=layout.gather_late,
    )
    return get_megatron_optimizer(config, chunks)


def batches(layout: Layout, step: int) -> Iterator[dict[str, torch.Tensor]]:
    """The microbatches of this rank: every n-th, and of each its part of the sequence."""
    generator = torch.Generator().manual_seed(step)
    shape = (layout.microbatches, layout.micro_batch, layout.length + 1)
    tokens = torch.randint(VOCABULARY, shape, generator=generator)
    keep = torch.rand(shape, generator=generator) < 0.7  # other counts in every microbatch
    dp_rank, dp_size = (
        parallel_state.get_data_parallel_rank(),
        parallel_state.get_data_parallel_world_size(),
    )
    for index in range(dp_rank, layout.microbatches, dp_size):
        batch = {
            "tokens": tokens[index, :, :-1],
            "labels": tokens[index, :, 1:].contiguous(),
            "loss_mask": keep[index, :, 1:].float(),
            "position_ids": torch.arange(layout.length).repeat(layout.micro_batch, 1),
        }
        yield get_batch_on_this_cp_rank({name: part.cuda() for name, part in batch.items()})


def forward_step(layout: Layout, data: Iterator[dict[str, torch.Tensor]], model: Any) -> Any:
    """What Megatron's schedules call for every microbatch."""
    batch = next(data)
    causal = torch.ones(layout.length, layout.length, dtype=torch.bool).triu(1)[None, None].cuda()
    output = model(batch["tokens"], batch["position_ids"], causal, labels=batch["labels"])
    return output, partial(loss_of, layout, batch["loss_mask"])


def loss_of(layout: Layout, mask: torch.Tensor, losses: torch.Tensor) -> Any:
    total, count = (losses.float() * mask).sum(), mask.sum()
    report = {"loss": total.detach()}
    if layout.per_token:
        return total, count.to(torch.int), report
    dist.all_reduce(count, group=parallel_state.get_context_parallel_group())
    return total / count, report


def per_rank(layout: Layout) -> int:
    return layout.microbatches // parallel_state.get_data_parallel_world_size()
