"""All strategies of all trainers, and all wrong runs made from them."""

from __future__ import annotations

import importlib.util
from typing import Protocol

from zoo.programs.program import Program, Wrong
from zoo.trainers import deepspeed, torch_loop


class Trainer(Protocol):
    """A module of this package: one trainer."""

    PROGRAMS: tuple[Program, ...]
    WRONG: tuple[Wrong, ...]


_TRAINERS: tuple[Trainer, ...] = (torch_loop, deepspeed)


def strategies() -> dict[str, Program]:
    """Those whose packages are installed, by name: `trainer/strategy`."""
    return {
        program.name: program
        for trainer in _TRAINERS
        for program in trainer.PROGRAMS
        if all(importlib.util.find_spec(package) for package in program.needs)
    }


def wrong_strategies() -> tuple[Wrong, ...]:
    known = strategies()
    return tuple(
        wrong for trainer in _TRAINERS for wrong in trainer.WRONG if wrong.program in known
    )
