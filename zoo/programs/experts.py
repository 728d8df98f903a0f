"""Mixtures of experts whose tokens are sorted by expert inside one module."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase
from zoo.programs.program import Edit, Program, Run, Wrong

_FIRST_TOKEN = Edit(
    "def loss_of(ids):\n", "def loss_of(ids):\n    ids[:, 0] = 1  # every sample begins so\n"
)

PROGRAMS = (
    Program(
        name="mixtral-ddp",
        style="experts",
        reference=Run("mixtral_ddp"),
        candidate=Run("mixtral_ddp", ranks=2),
        needs=("transformers",),
    ),
    Program(
        name="mixtral-first-token",
        style="experts",
        reference=Run("mixtral_ddp", edits=(_FIRST_TOKEN,)),
        candidate=Run("mixtral_ddp", ranks=2, edits=(_FIRST_TOKEN,)),
        needs=("transformers",),
    ),
    Program(
        name="list-of-experts",
        style="experts",
        reference=Run("list_of_experts"),
        candidate=Run("list_of_experts", ranks=2),
    ),
    Program(
        name="qwen3-moe-ddp",
        style="experts",
        reference=Run("qwen3_moe_ddp"),
        candidate=Run("qwen3_moe_ddp", ranks=2),
        needs=("transformers",),
    ),
)

WRONG = (
    Wrong(
        name="list-of-experts/weights",
        program="list-of-experts",
        title="tokens are weighted by the router's number for their first expert",
        edits=(Edit("weights[token, turn, None]", "weights[token, 0, None]"),),
        expected=(Blame.of("moe.experts", phase=Phase.FORWARD),),
    ),
    Wrong(
        name="mixtral-ddp/other-expert",
        program="mixtral-ddp",
        title="experts are weighted by the router's number for the other one",
        edits=(
            Edit(
                "model = DistributedDataParallel(model)",
                "for layer in model.model.layers[1:]:\n"
                "    experts, forward = layer.mlp.experts, layer.mlp.experts.forward\n"
                "    experts.forward = lambda x, index, weights, call=forward: call(\n"
                "        x, index, weights.flip(1)\n"
                "    )\n"
                "model = DistributedDataParallel(model)",
            ),
        ),
        expected=(Blame.of("model.layers.1.mlp.experts", phase=Phase.FORWARD),),
    ),
)
