"""All programs, and all wrong ones made from them."""

from __future__ import annotations

import importlib.util

from zoo.programs import (
    by_hand,
    classics,
    data_parallel,
    experts,
    isolated,
    lengths,
    losses,
    megatron_core,
    meshes,
    pipelines,
    rewrites,
    several_losses,
    sharded_inputs,
    tuned,
    updates,
)
from zoo.programs.program import Program, Wrong

_STYLES = (
    *(data_parallel, rewrites, updates, losses),
    *(lengths, sharded_inputs, experts, by_hand, isolated, tuned),
    *(pipelines, several_losses, classics, meshes, megatron_core),
)


def programs() -> dict[str, Program]:
    """Those whose packages are installed, by name."""
    return {
        program.name: program
        for style in _STYLES
        for program in style.PROGRAMS
        if all(importlib.util.find_spec(package) for package in program.needs)
    }


def wrong_programs() -> tuple[Wrong, ...]:
    known = programs()
    return tuple(wrong for style in _STYLES for wrong in style.WRONG if wrong.program in known)
