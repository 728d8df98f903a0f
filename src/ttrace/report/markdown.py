"""Markdown for an issue, and for the step summary of a CI run.

Enters: a CheckResult. Leaves: Markdown text: verdict, culprits, first wrong tensors, configuration.
Names of a user stand in code spans, so that they are no markup.
"""

from __future__ import annotations

import re

from ttrace.core.results import CheckResult
from ttrace.report import overall, scope, view, wording
from ttrace.report.numbers import counted, ratio_cell
from ttrace.report.wording import line
from ttrace.report.words import Line

_CULPRITS = 3  # chosen: the first ones are where to look
_ROWS = 10  # chosen: as in the terminal


def render(result: CheckResult) -> str:
    """Everything a colleague needs to begin."""
    verdict, _, rest = overall.headline(result).partition(": ")
    lines = [f"### TTrace: {verdict}", "", code(rest) if result.exit_code else rest, ""]
    causes = view.grouped(result)
    for cause in causes[:_CULPRITS]:
        where = f" in {code(cause.source)}" if cause.source else ""
        place = wording.with_commas(f"**{code(cause.where)}**", cause.phase)
        lines += [f"- {place}{where}: {code(cause.reason)}"]
        lines += [f"  - {code(e.id)}: {code(e.sentence)}" for e in cause.evidence]
    if len(causes) > _CULPRITS:
        lines.append(f"- {line(Line.MORE_PLACES, count=len(causes) - _CULPRITS)}")
    shown = result.failures or result.undecided
    if shown:
        lines += ["", "| tensor | verdict | error/tolerance | ranks |", "|---|---|---:|---|"]
        for tensor in shown[:_ROWS]:
            ranks = ", ".join(map(str, tensor.ranks)) or "-"
            name = code(str(tensor.id), cell=True)
            lines.append(
                f"| {name} | {tensor.verdict.value} | {ratio_cell(tensor.ratio)} | {ranks} |"
            )
    lines += ["", overall.counts(result)]
    lines += filter(None, (overall.nearness(result), scope.judged(result)))
    lines += [f"{what}: {len(names)}" for what, names in overall.not_covered(result)]
    lines += [f"- {code(said)}" for said in scope.said_of_accepted(result)]
    lines += _runs(result)
    return "\n".join(lines) + "\n"


def _runs(result: CheckResult) -> list[str]:
    lines = [""]
    for run in result.runs[:2]:
        mesh = " x ".join(f"{axis} {size}" for axis, size in run.mesh.items()) or "one device"
        said = run.versions | run.facts
        versions = ", ".join(f"{name} {value}" for name, value in said.items())
        facts = (
            f"{counted(run.world_size, 'rank')} ({mesh}), {', '.join(run.dtypes)} on {run.device}"
        )
        lines.append(f"- {run.role}: {code(f'{facts}; {versions}')}")
    return lines if len(lines) > 1 else []


def code(text: str, *, cell: bool = False) -> str:
    """A code span that its content cannot leave."""
    flat = re.sub(r"\s+", " ", text) or " "
    if cell:
        flat = flat.replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", flat)), default=0))
    pad = " " if flat[0] == "`" or flat[-1] == "`" else ""
    return f"{fence}{pad}{flat}{pad}{fence}"
