"""Losses that ranks make in parts: of their rows, of their tokens, of one state after the other."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Program, Run, Wrong


def _program(name: str, script: str, *needs: str) -> Program:
    return Program(
        name=name,
        style="losses in parts",
        reference=Run(script),
        candidate=Run(script, ranks=2),
        steps=2,
        needs=needs,
    )


PROGRAMS = (
    _program("split-loss", "split_loss"),
    _program("policy-gradient", "policy_gradient"),
    _program("tokens-in-batch", "tokens_in_batch", "transformers"),
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
