"""Megatron-Core with modules that its examples do not have."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase
from zoo.programs.program import Edit, Wrong, on_ranks


def _attentions(phase: Phase) -> tuple[Blame, ...]:
    name = "decoder.layers.{}.self_attention.core_attention"
    return tuple(Blame.of(name.format(layer), phase=phase) for layer in range(2))


PROGRAMS = tuple(
    on_ranks(name, "Megatron-Core", name.replace("-", "_"), steps=1, needs=("megatron",))
    for name in ("megatron-delta-net", "megatron-multimodal", "megatron-context")
)

WRONG = (
    Wrong(
        name="megatron-delta-net/no-sequence-parallel",
        program="megatron-delta-net",
        title="without sequence parallelism the package sums no gradient of the norm of heads",
        edits=(Edit("sp=world > 1", "sp=False"),),
        expected=(
            Blame.of("decoder.layers.1.self_attention.out_norm", phase=Phase.GRADIENT_REDUCTION),
        ),
    ),
    Wrong(
        name="megatron-multimodal/scattered-first",
        program="megatron-multimodal",
        title="every rank puts the picture at the beginning of its own part of the sequence",
        edits=(
            Edit(
                "        hidden = torch.cat([patches, text[PATCHES:]])\n"
                "        if self.config.sequence_parallel:\n"
                "            hidden = scatter_to_sequence_parallel_region(hidden)\n",
                "        if self.config.sequence_parallel:\n"
                "            text = scatter_to_sequence_parallel_region(text)\n"
                "        hidden = torch.cat([patches, text[PATCHES:]])\n",
            ),
        ),
        expected=(Blame.of("", phase=Phase.FORWARD),),
    ),
    Wrong(
        name="megatron-multimodal/plain-chunk",
        program="megatron-multimodal",
        title="the sequence is cut without gathering its gradient",
        edits=(
            Edit(
                "scatter_to_sequence_parallel_region(hidden)",
                "hidden.chunk(world)[torch.distributed.get_rank()]",
            ),
        ),
        expected=(Blame.of("", phase=Phase.BACKWARD),),
    ),
    Wrong(
        name="megatron-context/order-of-keys",
        program="megatron-context",
        title="keys are masked as if they were gathered in the order of the sequence",
        edits=(Edit("torch.cat(positions)[None, :]", "torch.arange(len(key))[None, :]"),),
        expected=_attentions(Phase.FORWARD),
    ),
    Wrong(
        name="megatron-context/own-gradient",
        program="megatron-context",
        title="gradients of keys and values that other ranks used are not gathered",
        edits=(Edit("        dist.all_reduce(grad, group=ctx.group)\n", ""),),
        expected=_attentions(Phase.BACKWARD),
    ),
)
