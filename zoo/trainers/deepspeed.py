"""DeepSpeed: ZeRO 0 to 3 in fp32 and bf16, with accumulation and clipping."""

from __future__ import annotations

from pathlib import Path

from zoo.programs.program import Program, Run, Wrong

_FOLDER = Path(__file__).parents[2] / "examples" / "deepspeed"


def _program(strategy: str, zero: int, *words: str, steps: int = 2) -> Program:
    """ZeRO on two ranks against no ZeRO on one."""
    return Program(
        name=f"deepspeed/{strategy}",
        style="deepspeed",
        reference=Run("train", words=("--zero", "0", *words), folder=_FOLDER),
        candidate=Run("train", ranks=2, words=("--zero", str(zero), *words), folder=_FOLDER),
        steps=steps,
        needs=("deepspeed",),
    )


PROGRAMS = (
    *(_program(f"zero{stage}", stage) for stage in range(4)),
    *(_program(f"zero{stage}-bf16", stage, "--bf16") for stage in range(4)),
    *(_program(f"zero{stage}-accumulation-4", stage, "--accumulate", "4") for stage in (2, 3)),
    *(_program(f"zero{stage}-clipping", stage, "--clip", "0.5") for stage in (0, 2, 3)),
)

WRONG: tuple[Wrong, ...] = ()
