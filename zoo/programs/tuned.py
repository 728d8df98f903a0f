"""Programs with numbers that somebody chose: rates, betas, decay, eps, dropout, clipping."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Program, Run, Wrong

_UPDATE = Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE)
_STATE = Blame.at(Stage.OPTIMIZER_STEP, Phase.STATE)

PROGRAMS = (
    Program(
        name="tuned-ddp",
        style="hyperparameters",
        reference=Run("tuned_ddp"),
        candidate=Run("tuned_ddp", ranks=2),
        steps=3,
    ),
    Program(
        name="pipeline-rates",
        style="hyperparameters",
        reference=Run("pipeline_rates"),
        candidate=Run("pipeline_rates", ranks=2),
        steps=2,
    ),
)


def _wrong(name: str, title: str, old: str, new: str, *expected: Blame) -> Wrong:
    program = name.partition("/")[0]
    return Wrong(
        name=name, program=program, title=title, edits=(Edit(old, new),), expected=expected
    )


WRONG = (
    _wrong(
        "tuned-ddp/rate-of-one-rank",
        "rank 1 has twice the learning rate",
        "lr=1e-2",
        "lr=1e-2 * (1 + rank)",
        _UPDATE,
    ),
    _wrong(
        "tuned-ddp/betas",
        "the second beta is torch's default",
        "betas=(0.9, 0.95)",
        "betas=(0.9, 0.999)",
        _STATE,
    ),
    _wrong(
        "tuned-ddp/decays-all",
        "norms and biases decay as well",
        '"weight_decay": 0.0',
        '"weight_decay": 0.1',
        _UPDATE,
    ),
    _wrong(
        "tuned-ddp/rate-stands-still",
        "the schedule makes no step",
        "    schedule.step()",
        "    pass",
        _UPDATE,
    ),
    _wrong(
        "tuned-ddp/dropout-on",
        "the second block drops a tenth",
        "Block(16, 0.0), nn.Linear(16, 4)",
        "Block(16, 0.1), nn.Linear(16, 4)",
        Blame.of("2.dropout", phase=Phase.FORWARD),
    ),
    _wrong(
        "tuned-ddp/eps-of-one-rank",
        "rank 1 has another eps in its norms",
        "eps=1e-5",
        "eps=1e-5 if rank == 0 else 1e-3",
        Blame.of("1.norm", phase=Phase.FORWARD),
        Blame.of("2.norm", phase=Phase.FORWARD),
    ),
    _wrong(
        "tuned-ddp/clips-to-another-norm",
        "gradients are clipped to another norm",
        "max_norm=0.5",
        "max_norm=0.25",
        Blame.at(Stage.GRADIENT_CLIPPING, Phase.CLIP),
    ),
    _wrong(
        "pipeline-rates/rate-of-one-stage",
        "stage 1 has twice the learning rate",
        "lr=2.5e-4",
        "lr=2.5e-4 * (1 + rank)",
        _UPDATE,
    ),
)
