"""All programs, and all wrong ones made from them."""

from __future__ import annotations

import importlib.util

from zoo.programs import data_parallel, pipelines, rewrites, several_losses
from zoo.programs.program import Program, Wrong

_STYLES = (data_parallel, pipelines, rewrites, several_losses)


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
