"""Neutral rewrites: the candidate computes the same in another way, and may be right or wrong.

Every edit is one that people make for speed or for memory. What differs inside has no effect
outside, which is a note; the same rewrite with an error of 1% inside is a mistake.
"""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase, Stage
from zoo.bug import each
from zoo.programs.program import Edit, Program, Run, Wrong

_LAYERS = range(3)
_SOFTMAX = "        return scores.softmax(-1)"
_MASKED = "        return scores.masked_fill(mask, -1e4)"
_CORE = "        return self.probabilities(self.scores(q, k)) @ v"
_MIXED = "        mixed = self.core(*heads)"

_SCALED = (
    Edit(_MASKED, "        return scores.masked_fill(mask, -1e4) / (self.layer + 2)"),
    Edit(_SOFTMAX, "        return (scores * (self.layer + 2)).softmax(-1)"),
)
_OTHER_ORDER = (
    Edit(
        _CORE,
        "        k = k.flip(-2)\n        return self.probabilities(self.scores(q, k)) @ v.flip(-2)",
    ),
    Edit(".triu(1)", ".triu(1).flip(-1)"),
)
_PERMUTED_HEADS = (
    Edit(_MIXED, "        mixed = self.core(*(part.flip(1) for part in heads)).flip(1)"),
)
_SHIFTED = (
    Edit(_MASKED, "        return self.shifted(scores.masked_fill(mask, -1e4))"),
    Edit(
        "class Probabilities(",
        """    def shifted(self, scores):
        return scores - scores.amax(-1, keepdim=True).detach()


class Probabilities(""",
    ),
)
_FUSED = (
    Edit(
        _MIXED,
        "        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)",
    ),
)
_RESIDUAL = (
    Edit(
        "        x = x + self.attention(self.norm1(x))",
        "        a = self.attention(self.norm1(x))\n        x = a + x",
    ),
)
_RECOMPUTED = (
    Edit("            x = layer(x)", "            x = checkpoint(layer, x, use_reentrant=False)"),
    Edit("import ttrace\n", "import ttrace\nfrom torch.utils.checkpoint import checkpoint\n"),
)
_LOSS_SCALED = (
    Edit(
        "        loss.backward()\n",
        "        (loss * 1024).backward()\n"
        "        for parameter in model.parameters():\n"
        "            parameter.grad /= 1024\n",
    ),
)
_VALUES_SCALED = (
    Edit(_CORE, "        return (self.probabilities(self.scores(q, k)) @ (v * 8)) / 8"),
)
_QUERIES_SCALED = (
    Edit(_MIXED, "        q, k, v = heads\n        mixed = self.core(q * 4, k / 4, v)"),
)
_TRANSPOSED = (
    Edit(_SOFTMAX, "        return scores.transpose(-1, -2).softmax(-2)"),
    Edit(_CORE, "        return self.probabilities(self.scores(q, k)).transpose(-1, -2) @ v"),
)


def _rewrite(name: str, *edits: Edit) -> Program:
    return Program(
        name=f"rewrite/{name}",
        style="neutral rewrite",
        reference=Run("transformer_ddp"),
        candidate=Run("transformer_ddp", ranks=2, edits=edits),
    )


PROGRAMS = (
    Program(
        name="transformer-ddp",
        style="data parallel",
        reference=Run("transformer_ddp"),
        candidate=Run("transformer_ddp", ranks=2),
    ),
    _rewrite("scores-scaled-by-layer", *_SCALED),
    _rewrite("keys-in-other-order", *_OTHER_ORDER),
    _rewrite("heads-permuted", *_PERMUTED_HEADS),
    _rewrite("scores-shifted", *_SHIFTED),
    _rewrite("fused-attention", *_FUSED),
    _rewrite("residual-the-other-way", *_RESIDUAL),
    _rewrite("layers-recomputed", *_RECOMPUTED),
    _rewrite("loss-scaled", *_LOSS_SCALED),
    _rewrite("values-scaled", *_VALUES_SCALED),
    _rewrite("queries-scaled", *_QUERIES_SCALED),
    _rewrite("probabilities-transposed", *_TRANSPOSED),
)

WRONG = (
    Wrong(
        name="rewrite/loss-scaled/by-less",
        program="rewrite/loss-scaled",
        title="gradients are divided by less than the loss was multiplied by",
        edits=(Edit("parameter.grad /= 1024", "parameter.grad /= 1000"),),
        expected=(
            Blame.at(Stage.LOSS, Phase.FORWARD),
            Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),
        ),
    ),
    Wrong(
        name="rewrite/values-scaled/by-more",
        program="rewrite/values-scaled",
        title="the first layer's values are divided by 1% more than they were multiplied by",
        edits=(Edit("@ (v * 8)) / 8", "@ (v * 8)) / (8.08 if self.scores.layer == 0 else 8)"),),
        expected=(Blame.of("layers.0.attention.core", phase=Phase.FORWARD),),
    ),
    Wrong(
        name="rewrite/probabilities-transposed/of-the-wrong-dim",
        program="rewrite/probabilities-transposed",
        title="the probabilities are normalised over queries, not keys, in the last layer",
        edits=(Edit(".softmax(-2)", ".softmax(-1 if self.layer == 2 else -2)"),),
        expected=(Blame.of("layers.2.attention.core", phase=Phase.FORWARD),),
    ),
    Wrong(
        name="rewrite/scores-scaled-by-layer/not-quite-undone",
        program="rewrite/scores-scaled-by-layer",
        title="the second layer's scale is undone to within 1%",
        edits=(Edit("* (self.layer + 2))", "* (self.layer + (2.03 if self.layer == 1 else 2)))"),),
        expected=(Blame.of("layers.1.attention.core", phase=Phase.FORWARD),),
    ),
    Wrong(
        name="rewrite/keys-in-other-order/values-as-they-were",
        program="rewrite/keys-in-other-order",
        title="the last layer's values are not put in the order of the keys",
        edits=(Edit("@ v.flip(-2)", "@ (v if self.scores.layer == 2 else v.flip(-2))"),),
        expected=(Blame.of("layers.2.attention.core", phase=Phase.FORWARD),),
    ),
    Wrong(
        name="rewrite/heads-permuted/off-by-1%",
        program="rewrite/heads-permuted",
        title="the second layer's heads come back 1% larger",
        edits=(
            Edit("for part in heads)).flip(1)", "for part in heads)).flip(1) * self.gain"),
            Edit(
                "        self.core = CoreAttention(layer)",
                "        self.core = CoreAttention(layer)\n"
                "        self.gain = 1.01 if layer == 1 else 1.0",
            ),
        ),
        expected=(Blame.of("layers.1.attention", phase=Phase.FORWARD),),
    ),
    Wrong(
        name="rewrite/scores-shifted/and-scaled",
        program="rewrite/scores-shifted",
        title="the last layer's scores are 1% larger after the shift",
        edits=(
            Edit(
                "return scores - scores.amax",
                "return (1 + 0.01 * (self.layer == 2)) * scores - scores.amax",
            ),
        ),
        expected=(Blame.of("layers.2.attention.core", phase=Phase.FORWARD),),
    ),
    Wrong(
        name="rewrite/fused-attention/another-scale",
        program="rewrite/fused-attention",
        title="the fused attention of every layer has another scale",
        edits=(Edit("is_causal=True)", "is_causal=True, scale=0.36)"),),
        expected=each((f"layers.{n}.attention" for n in _LAYERS), Phase.FORWARD),
    ),
)
