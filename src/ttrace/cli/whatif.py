"""The command that asks what high precision would change: whatif.

layers.1 carries 84% of the distance between gradients, and 61% of the loss gap
  reference loss 4.70135, candidate 4.72032: a gap of 0.019, 3.4e+04 eps of float32
  the candidate's gradients are 0.43 of their norm away from the reference's

  in high precision               loss      gap  gradient distance closed  loss gap closed
  all that match (21 modules)  4.70135        0                      100%             100%
  layers.1 (7 modules)         4.70872  0.00737                       84%              61%
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ttrace.cli import options
from ttrace.cli.screen import say, stamped_folder, telling, write_json
from ttrace.core.door import to_dict
from ttrace.core.whatif import FEWEST_EPS, Answer, LossGap, PreciseGroup, WhatIf
from ttrace.lab.launch import LocalExecutor
from ttrace.lab.options import ComparisonOptions
from ttrace.report.numbers import counted

_Patterns = Annotated[
    list[str],
    typer.Option(
        "--high-precision",
        metavar="PATTERN",
        help="Modules of the candidate, as 'layers.*.feed_forward.*'; repeatable.",
    ),
]
_By = Annotated[
    str, typer.Option("--by", metavar="layer|module", help="Which of them make a group.")
]
# Nothing is judged, so nothing says how.
_OF_JUDGEMENT = (
    *("every", "perturbed_runs", "split_reductions", "repeat_reference", "strict", "accept"),
)
_DISTANCE = "distance between gradients"
_LOSS_SAYS = {
    LossGap.CLEAR: "",
    LossGap.ROUNDING: f", below {FEWEST_EPS:g}, which says nothing",
    LossGap.CANCELS: ", which says little: groups move the loss by more, in both directions",
}
_HEADER = ("in high precision", "loss", "gap", "gradient distance closed", "loss gap closed")


@options.takes(ComparisonOptions, without=_OF_JUDGEMENT)
def whatif(
    reference: options.Reference,
    candidate: options.Candidate,
    high_precision: _Patterns,
    by: _By = "layer",
    out: options.Out = None,
    json_file: options.Json = None,
    **chosen: Any,
) -> None:
    """Run the candidate with groups of modules in high precision: which carries the loss gap?"""
    from ttrace.lab.whatif import whatif as ask

    with telling(LocalExecutor()) as told:
        found = ask(
            reference,
            candidate,
            high_precision,
            out=out or stamped_folder("whatif"),
            by=by,
            execute=told,
            progress=told.progress,
            **chosen,
        )
    for line in whatif_lines(found):
        say(line, stderr=json_file == "-")
    write_json(json_file, whatif_json(found))


def answer_line(found: WhatIf) -> str:
    """The answer in one sentence."""
    first, together = found.groups[0], found.gradient_closed(found.together)
    if found.answer is Answer.NO_GAP:
        return f"there is no gap: loss and gradients are within {FEWEST_EPS:g} eps of the reference"
    if found.answer is Answer.ONE:
        share = _percent(found.gradient_closed(first))
        return f"{first.name} carries {share} of the {_DISTANCE}{_of_loss(found, first)}"
    if found.answer is Answer.SEVERAL:
        return (
            f"no group carries most of the {_DISTANCE}: all together carry {_percent(together)}, "
            f"{first.name} {_percent(found.gradient_closed(first))}"
        )
    return (
        f"most of the {_DISTANCE} is elsewhere: with all that match in high precision "
        f"{_percent(1 - together)} of it stays"
    )


def _of_loss(found: WhatIf, first: PreciseGroup) -> str:
    """And of the gap of the loss, where that tells something."""
    most = found.loss_carrier
    if most is None:
        return ""
    share = _percent(found.loss_closed(most))
    return f", {'and' if most is first else most.name} {share} of the loss gap"


def whatif_lines(found: WhatIf) -> Iterator[str]:
    """The headline, what it is about, and the table."""
    yield answer_line(found)
    yield f"  {_about_loss(found)}"
    relative = found.candidate.gradient_distance / found.gradient_norm if found.gradient_norm else 0
    yield f"  the candidate's gradients are {relative:.2g} of their norm away from the reference's"
    yield ""
    rows = [_HEADER, _row(found, found.together, "all that match")]
    rows += [_row(found, group, group.name) for group in found.groups]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield f"  {row[0].ljust(widths[0])}  {'  '.join(cells)}"
    for why in found.together.left:
        yield f"  not undone: {why}"


def whatif_json(found: WhatIf) -> dict[str, Any]:
    """Its fields, and what can be read from them."""
    shares = {
        group.name: {
            "loss_closed": found.loss_closed(group),
            "gradient_closed": found.gradient_closed(group),
        }
        for group in found.groups
    }
    return {
        "headline": answer_line(found),
        "answer": found.answer.value,
        "loss_gap": found.loss_gap.value,
        "gap_eps": found.gap_eps,
        "shares": shares,
        **to_dict(found),
    }


def _about_loss(found: WhatIf) -> str:
    run, size = found.candidate, f"{found.gap_eps:,.2g} eps of {found.loss_dtype}"
    gap = f"a gap of {run.loss_gap:.3g}, {size}"
    losses = f"reference loss {found.reference_loss:.6g}, candidate {run.loss:.6g}: {gap}"
    return losses + _LOSS_SAYS[found.loss_gap]


def _row(found: WhatIf, group: PreciseGroup, name: str) -> tuple[str, ...]:
    many = f" ({counted(len(group.modules), 'module')})" if len(group.modules) > 1 else ""
    return (
        f"{name}{many}",
        f"{group.reading.loss:.6g}",
        f"{group.reading.loss_gap:.3g}",
        _percent(found.gradient_closed(group)),
        _percent(found.loss_closed(group)),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
