"""Markdown for an issue, and for the step summary of a CI run.

Enters: a CheckResult. Leaves: Markdown text: verdict, culprits, first wrong tensors, configuration.
Names of a user stand in code spans, so that they are no markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ttrace.core.results import CheckResult
from ttrace.report import overall, view, wording
from ttrace.report.card import Card, cards
from ttrace.report.catalogue.sentences import Line
from ttrace.report.numbers import counted
from ttrace.report.wording import line, listed_ranks, mesh_of
from ttrace.text import inert, inert_line

_CULPRITS = 3  # chosen: the first ones are where to look
_ROWS = 5  # chosen: as in the terminal
_PLAIN = re.compile(r"[A-Za-z0-9 ,.()]*")  # none of it is markup inside of a line


def render(result: CheckResult) -> str:
    """Everything a colleague needs to begin."""
    verdict, _, rest = overall.headline(result).partition(": ")
    lines = [f"### TTrace: {verdict}", "", code(rest) if result.exit_code else rest, ""]
    mesh = mesh_of(result)
    found = cards(result)
    for card in found[:_CULPRITS]:
        lines += _card(card)
    if len(found) > _CULPRITS:
        lines.append(f"- {line(Line.MORE_PLACES, count=len(found) - _CULPRITS)}")
    shown = result.failures or result.undecided
    if shown:
        lines += ["", "| tensor | verdict | error/tolerance | ranks |", "|---|---|---:|---|"]
        for tensor in shown[:_ROWS]:
            ranks = _words(listed_ranks(tensor.ranks, mesh)) if tensor.ranks else "-"
            cells = (code(str(tensor.id)), tensor.verdict.value, view.ratio_cell(tensor), ranks)
            # Renderers do not agree on a bar behind a backslash.
            lines.append("| " + " | ".join(cell.replace("|", r"\x7c") for cell in cells) + " |")
    lines += ["", overall.counts(result)]
    lines += filter(None, (overall.nearness(result), overall.judged(result)))
    lines += [f"{what}: {len(names)}" for what, names in overall.not_covered(result)]
    lines += [f"- {code(said)}" for said in overall.said_of_accepted(result)]
    lines += _runs(result)
    return "\n".join(lines) + "\n"


def _card(card: Card) -> list[str]:
    """The five facts, the code, and the tensors that say so."""
    cause = card.cause
    facts = {
        "where": wording.with_commas(f"**{code(cause.where)}**", cause.phase)
        + (f" ({code(card.behind)})" if card.behind else ""),
        "what": f"**{code(card.badge.words)}**" + (f": {code(card.looks)}" if card.looks else ""),
        "how sure": code(card.sure),
        "ranks": code(card.ranks_said) if card.ranks_said else "",
        "next": code(card.hint),
        "why": code(card.why),
        "expected": code(card.expected) if card.expected else "",
    }
    lines = [f"- {name}: {said}" for name, said in facts.items() if said]
    lines += [f"  - {code(e.id)}: {code(e.sentence)}" for e in cause.evidence]
    for excerpt in card.code[:1]:
        fence = "`" * max(3, 1 + _longest_fence(excerpt.lines))
        shown = map(inert_line, excerpt.lines)
        lines += ["", f"{code(excerpt.place)}", "", f"{fence}python", *shown, fence]
    return [*lines, ""]


def _longest_fence(lines: Sequence[str]) -> int:
    return max((len(run) for text in lines for run in re.findall("`+", text)), default=0)


def _runs(result: CheckResult) -> list[str]:
    lines = [""]
    for run in result.runs[:2]:
        mesh = " x ".join(f"{axis} {size}" for axis, size in run.mesh.items()) or "one device"
        said = run.versions | run.facts
        versions = ", ".join(f"{name} {value}" for name, value in said.items())
        facts = (
            f"{counted(run.world_size, 'rank')} ({mesh}), {', '.join(run.dtypes)} on {run.device}"
        )
        lines.append(f"- {_words(run.role)}: {code(f'{facts}; {versions}')}")
    return lines if len(lines) > 1 else []


def _words(text: str) -> str:
    """Words as they are; in a code span where anything in them might be markup."""
    return text if _PLAIN.fullmatch(text) else code(text)


def code(text: str) -> str:
    """A code span that its content cannot leave."""
    flat = re.sub(r" +", " ", inert(text)) or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", flat)), default=0))
    pad = " " if flat[0] == "`" or flat[-1] == "`" else ""
    return f"{fence}{pad}{flat}{pad}{fence}"
