"""GitHub annotations: the first culprits, at the lines of their code where those are known.

Enters: a CheckResult. Leaves: workflow commands for standard output, and the path of the step
summary, which takes Markdown.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ttrace.core.results import CheckResult
from ttrace.report import overall, view
from ttrace.report.card import cards
from ttrace.text import inert

_CULPRITS = 3  # chosen: GitHub shows at most ten of a step; the first ones are where to look


def workflow_commands(result: CheckResult) -> list[str]:
    """::error file=model.py,line=42,title=NOT EQUIVALENT%3A ...::reason"""
    title = overall.headline(result)
    accepted = [
        f"::notice title=TTrace::{_data(said)}" for said in overall.said_of_accepted(result)
    ]
    return [*_verdict(result, title), *accepted]


def _verdict(result: CheckResult, title: str) -> list[str]:
    if result.exit_code == 0:
        return [f"::notice title=TTrace::{_data(title)}"]
    level = "error" if result.exit_code == 1 else "warning"
    found = cards(result)[:_CULPRITS]
    if not found:
        return [f"::{level} title={_property(title)}::{_data(view.look_first(result) or title)}"]
    return [
        f"::{level} {_place(card.source)}title={_property(title)}::"
        + _data(f"{card.cause.place}: {card.badge.words}; {card.cause.reason}")
        for card in found
    ]


def summary_file() -> Path | None:
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    return Path(path) if path else None


def _place(source: str) -> str:
    """Annotations are shown at files of the repository; others would point nowhere."""
    match = re.fullmatch(r"(.+):(\d+)", source)
    if match is None:
        return ""
    path = Path(match[1])
    if path.is_absolute():
        if not path.is_relative_to(Path.cwd()):
            return ""
        path = path.relative_to(Path.cwd())
    return f"file={_property(str(path))},line={match[2]},"


def _data(text: str) -> str:
    return inert(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
