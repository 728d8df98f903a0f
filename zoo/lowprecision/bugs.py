"""Bugs of training in low precision, each in the recipe and layout where it is at home."""

from __future__ import annotations

from dataclasses import replace

from ttrace.core.blame import Blame, Phase, Stage
from ttrace.lab.run import Function
from zoo.bug import Bug, Family
from zoo.lowprecision.case import Case
from zoo.lowprecision.plants import PLANTS
from zoo.lowprecision.recipes import RECIPES
from zoo.lowprecision.train import train_rank
from zoo.registry import register

# By the noise of codes that flip everywhere before it; an isolated run sees them.
_HIDDEN = frozenset(
    {
        "amax-of-each-rank",
        "stale-scale",
        "transposed-scales",
        "e5m2-for-e4m3",
        "quantised-twice",
        "weight-before-update",
        "stale-shard",
        "bf16-reduction",
        "same-seed-on-all-ranks",
        "truncated-gradient",
        "left-out-of-recipe",
        "rows-for-columns",
    }
)


def _bug(name: str, title: str, origin: str, phase: Phase | Blame, case: Case) -> Bug:
    """`phase` of the layer that it is planted in, or whom else it must be blamed on."""
    recipe = RECIPES[case.recipe]
    blame = phase if isinstance(phase, Blame) else Blame.of(PLANTS[name][1], phase=phase)
    return Bug(
        name=name,
        family=Family.LOW_PRECISION,
        title=title,
        origin=origin,
        layout=f"{case.recipe}, {case.layout}, {case.dtype}",
        expected=(blame,),
        reference=Function(train_rank, arguments=(recipe.reference(case),)),
        candidate=Function(train_rank, ranks=2, arguments=(replace(case, bugs=frozenset({name})),)),
        twin=Function(train_rank, ranks=2, arguments=(case,)),
        steps=case.steps or recipe.steps,
        needs=case.needs,
        is_hidden=name in _HIDDEN,
    )


_MADE_UP = "made up"
BUGS: tuple[Bug, ...] = (
    _bug(
        "amax-of-each-rank",
        "the maximum of a split input is not taken over the tensor-parallel group",
        "Megatron-LM#442",
        Phase.FORWARD,
        Case(recipe="tensorwise", layout="tp2", dtype="fp32"),
    ),
    _bug(
        "stale-scale",
        "a delayed scale is made from its history once, and not again",
        _MADE_UP,
        Blame.of("layers.1.feed_forward.w1.scaling", phase=Phase.BUFFER),
        Case(recipe="delayed", layout="ddp2"),
    ),
    _bug(
        "scale-of-the-other",
        "the codes of the input are multiplied by the scale of the weight",
        _MADE_UP,
        Phase.FORWARD,
        Case(recipe="tensorwise", layout="ddp2"),
    ),
    _bug(
        "transposed-scales",
        "a weight is transposed for backward, and the scales of its blocks are not",
        _MADE_UP,
        Phase.BACKWARD,
        Case(recipe="blockwise", layout="ddp2"),
    ),
    _bug(
        "inverted-scale",
        "codes are divided by their scales",
        _MADE_UP,
        Phase.WEIGHT_GRADIENT,
        Case(recipe="mxfp8", layout="fsdp2"),
    ),
    _bug(
        "no-dequantise",
        "the gradient of an input is not multiplied by the scale of its factor",
        _MADE_UP,
        Phase.BACKWARD,
        Case(recipe="tensorwise", layout="tp2-sp"),
    ),
    _bug(
        "no-saturation",
        "a cast does not saturate: what is too large becomes NaN",
        "made up; casts of torch before pytorch#178817",
        Phase.FORWARD,
        Case(recipe="delayed", layout="tp2"),
    ),
    _bug(
        "e5m2-for-e4m3",
        "activations in e5m2, which is for gradients",
        _MADE_UP,
        Phase.FORWARD,
        Case(recipe="rowwise", layout="tp2-sp", dtype="fp32"),
    ),
    _bug(
        "quantised-twice",
        "an input is quantised along rows, and what that gives along columns",
        "DeepSeek-V3 on tiles and their transposes",
        Phase.WEIGHT_GRADIENT,
        Case(recipe="blockwise", layout="fsdp2", dtype="fp32"),
    ),
    _bug(
        "no-history-in-recompute",
        "maxima of a layer that is computed again are never kept",
        "TransformerEngine#738, TransformerEngine#1723",
        Blame.of("layers.1.feed_forward.w2.scaling", phase=Phase.BUFFER),
        Case(recipe="delayed", layout="ddp2", recomputes=True),
    ),
    _bug(
        "weight-before-update",
        "the codes of a weight are kept over an update",
        _MADE_UP,
        Phase.FORWARD,
        Case(recipe="rowwise", layout="ddp2", dtype="fp32", steps=5),
    ),
    _bug(
        "bf16-reduction",
        "gradients are reduced in bf16 where fp32 is configured",
        _MADE_UP,
        Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),
        Case(recipe="bf16-fp32-reduction", layout="fsdp2", dtype="fp32"),
    ),
    _bug(
        "loss-scale-kept",
        "one rank does not divide the gradient of its part by the scale of the loss",
        _MADE_UP,
        Blame.of("layers.1.feed_forward.w2", phase=Phase.GRADIENT_REDUCTION),
        Case(recipe="fp16-scaled", layout="tp2", dtype="fp32"),
    ),
    _bug(
        "overflow-unseen",
        "one rank does not leave out a step that overflowed",
        _MADE_UP,
        Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE),
        Case(recipe="fp16-scaled", layout="tp2", dtype="fp32"),
    ),
    _bug(
        "same-seed-on-all-ranks",
        "parts of parameters are rounded by the same random numbers on all ranks",
        _MADE_UP,
        Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE),
        Case(recipe="bf16-stochastic", layout="fsdp2"),
    ),
    _bug(
        "truncated-gradient",
        "stochastic rounding without random numbers rounds towards zero",
        _MADE_UP,
        Phase.WEIGHT_GRADIENT,
        Case(recipe="nvfp4-stochastic", layout="tp2"),
    ),
    _bug(
        "global-scale-forgotten",
        "of two levels of scales, that of the whole tensor is left out",
        _MADE_UP,
        Phase.FORWARD,
        Case(recipe="nvfp4", layout="tp2"),
    ),
    _bug(
        "left-out-of-recipe",
        "the candidate's recipe leaves one layer out",
        _MADE_UP,
        Phase.FORWARD,
        Case(recipe="rowwise", layout="tp2-sp"),
    ),
    _bug(
        "scales-of-the-next-block",
        "each block is multiplied by the scale of the block before it",
        _MADE_UP,
        Phase.FORWARD,
        Case(recipe="mxfp8", layout="tp2"),
    ),
    _bug(
        "rows-for-columns",
        "all rows of a transposed weight have the mean of their scales",
        _MADE_UP,
        Phase.BACKWARD,
        Case(recipe="rowwise-hp", layout="ddp2"),
    ),
)

if "torchao-float8-gather" in RECIPES:  # where torchao is installed
    BUGS = (
        *BUGS,
        _bug(
            "stale-shard",
            "one rank sends the float8 shard of the step before",
            _MADE_UP,
            Phase.FORWARD,
            Case(recipe="torchao-float8-gather", layout="fsdp2", dtype="fp32", steps=5),
        ),
    )

register(*BUGS)
