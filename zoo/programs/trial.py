"""A program through the whole of TTrace, as `ttrace diff` and `ttrace localize` run it."""

from __future__ import annotations

from collections import defaultdict

from ttrace.core.ids import MASTER, Kind
from ttrace.core.results import CheckResult, Verdict
from ttrace.lab.run import Function
from zoo.programs.program import Program, Run, Wrong
from zoo.programs.rank import run_script
from zoo.trials import Trial, Trials

# What must have been judged of every parameter that has a gradient.
_GRADIENTS = frozenset({Kind.GRAD, Kind.ACCUMULATED_GRAD, Kind.REDUCED_GRAD, Kind.MAIN_GRAD})


def try_program(trials: Trials, program: Program) -> Trial:
    """Both correct runs against each other, compared and isolated."""
    return _try(trials, program, program.candidate)


def try_wrong(trials: Trials, program: Program, wrong: Wrong) -> Trial:
    return _try(trials, program, wrong.candidate(program))


def unjudged(result: CheckResult) -> tuple[str, ...]:
    """What nobody looked at: tensors without a verdict, parameters without gradient or update."""
    open_ = [str(t.id) for t in result.tensors if t.verdict is Verdict.UNDECIDED]
    kinds: dict[tuple[str, str], set[Kind]] = defaultdict(set)
    for tensor in result.tensors:
        kinds[tensor.id.module, tensor.id.slot].add(tensor.id.kind)
    parameters = {of: found for of, found in kinds.items() if Kind.PARAM in found}
    for (module, slot), found in parameters.items():
        name = f"{module}.{slot}".lstrip(".")
        if not found & _GRADIENTS and not slot.endswith(MASTER):
            open_.append(f"gradient of {name}")
        if Kind.PARAM_AFTER not in found:
            open_.append(f"update of {name}")
    return tuple(open_) if parameters else (*open_, "no parameter was recorded")


def _try(trials: Trials, program: Program, candidate: Run) -> Trial:
    return trials.run(function(program.reference), function(candidate), steps=program.steps)


def function(run: Run) -> Function:
    """A script on its ranks, as an experiment runs it."""
    return Function(run_script, ranks=run.ranks, arguments=(run,))
