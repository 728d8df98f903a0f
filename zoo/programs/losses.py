"""Losses that ranks make in parts: of their rows, of their tokens, of one state after the other."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Wrong, on_ranks

_STYLE = "losses in parts"

PROGRAMS = (
    on_ranks("split-loss", _STYLE, "split_loss"),
    on_ranks("policy-gradient", _STYLE, "policy_gradient"),
    on_ranks("tokens-in-batch", _STYLE, "tokens_in_batch", needs=("transformers",)),
)

WRONG = (
    Wrong(
        name="split-loss/not-summed",
        program="split-loss",
        title="one gradient is left out of the sum over ranks",
        edits=(
            Edit(
                "for parameter in model.parameters():",
                "for parameter in list(model.parameters())[1:]:",
            ),
        ),
        expected=(Blame.of("first", phase=Phase.GRADIENT_REDUCTION),),
    ),
    Wrong(
        name="policy-gradient/other-returns",
        program="policy-gradient",
        title="every rank takes the returns from the beginning",
        edits=(Edit("* returns[index]", "* returns[index - mine.start]"),),
        expected=(Blame.at(Stage.LOSS, Phase.FORWARD),),
    ),
    Wrong(
        name="tokens-in-batch/averaged",
        program="tokens-in-batch",
        title="the average over ranks is not made up for",
        edits=(Edit("(output.loss * world).backward()", "output.loss.backward()"),),
        expected=(Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),),
    ),
)
