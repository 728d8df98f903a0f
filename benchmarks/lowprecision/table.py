"""The page docs/reference/lowprecision.md, from what the grid and the bugs have given."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.bugs.table import Row, bugs_table
from benchmarks.lowprecision.grid import Clean, largest_of
from zoo.lowprecision.case import LayoutName
from zoo.lowprecision.recipes import RECIPES

_HEAD = """# Low precision

Written by `make bench-lowprecision`. A small Llama of `zoo/lowprecision` is trained by each recipe
on one process and in several layouts on two gloo ranks, with products emulated bit for bit as the
formats say. torchao's recipes are its own code (`emulate=True`); the others are made by hand.

The reference has the whole batch at once. Where a data-parallel rank has scales of its own samples,
TTrace runs it again [in the candidate's
blocks](../explanation/quantised.md#scales-of-fewer-samples).
The recipes that are marked by * keep more of each rank than scales, as maxima of gradients before
their mean: there the reference goes through the ranks' batches one by one.
"""
_CLEAN = """## Correct runs

The largest error over its tolerance of any tensor, plain or isolated, over the seeds; in brackets,
how many tensors failed or were undecided, all of which would be false alarms.
"""
_POWER = """## The smallest errors found

`python -m studies.power.lowprecision` plants errors of known kind and size into recorded values
of correct runs, as [for other programs](power.md): outputs, gradients and weight gradients of one
layer, under tensor parallelism where a recipe has it. The table has the size that 95% of the trials
need: of a factor `1 + x` of all of a tensor, and of one row of it. Constants are on the relative
norm. A limit that raises alarms on a correct run of this precision was first multiplied by the
smallest number that silences all of them. *Norm only* is TTrace's perturbed reference without finer
statistics. The model is small: an operand has 4,096 to 16,384 elements, of which a
[perturbed run](../decisions/0036-noise-where-codes-are-made.md) gives about 16 another code, and
what that does falls with the square root of their number. Errors are planted into tensors that
differ from the reference: where a dash stands, all are equal to it.

<!-- power -->
"""
_BUGS = """## Bugs

Each bug is planted in one place of a recipe; its twin is the same run without it. *Plain* is what
the comparison without isolated runs says; where it passes, `ttrace diff` [looks
further](../explanation/quantised.md#what-a-pass-hides).
"""
_LAYOUTS: tuple[LayoutName, ...] = ("ddp2", "fsdp2", "tp2", "tp2-sp")


def page(found: Sequence[Clean], rows: Sequence[Row], power: str) -> str:
    alarms = sum(each.alarms for each in found)
    places = len({(each.case.recipe, each.case.layout) for each in found})
    exact = sum(row.is_exact for row in rows)
    silent = sum(row.twin.is_silent for row in rows)
    summary = (
        f"{len(found)} runs of {places} pairs of a recipe and a layout: {alarms} alarms, the "
        f"largest ratio is {largest_of(found):.2f}.\n"
    )
    together = f"\nNamed: {exact} of {len(rows)}. Silent twins: {silent} of {len(rows)}.\n"
    return "\n".join(
        [
            _HEAD,
            _CLEAN,
            summary,
            clean_table(found),
            "",
            _POWER,
            power,
            "\n<!-- end -->\n",
            _BUGS,
            bugs_table(rows),
            together,
        ]
    )


def clean_table(found: Sequence[Clean]) -> str:
    lines = [
        f"| recipe | precision | {' | '.join(_LAYOUTS)} |",
        "|---" * (2 + len(_LAYOUTS)) + "|",
    ]
    keys = dict.fromkeys((each.case.recipe, each.case.dtype) for each in found)
    for recipe, dtype in keys:
        own = [each for each in found if (each.case.recipe, each.case.dtype) == (recipe, dtype)]
        cells = [_cell([each for each in own if each.case.layout == name]) for name in _LAYOUTS]
        star = "*" if RECIPES[recipe].by_batches_of_ranks else ""
        lines.append(f"| {recipe}{star} | {dtype} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(found: Sequence[Clean]) -> str:
    if not found:
        return ""
    alarms = sum(each.alarms for each in found)
    return f"{largest_of(found):.2f}" + (f" ({alarms})" if alarms else "")
