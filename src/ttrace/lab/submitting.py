"""Commands that start ranks elsewhere and do not wait for them: of Slurm, Kubernetes and Ray.

Enters: a command. Leaves: whether its end says nothing about the run. What is not recognised here,
a script that submits a job say, is for --elsewhere.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from ttrace.capture.settings import PACKED
from ttrace.errors import UsageError
from ttrace.lab.run import Command

_BETWEEN = "();<>|&\n"  # commands of a line of shell
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
# After NAME= as in a shell, or "NAME": as in JSON.
_EMPTIED = re.compile(rf"{PACKED}(?:=|[\"']\s*:\s*+)[\"']*+(?=[\s,;|&)}}]|$)")


def starts_elsewhere(command: Command) -> bool:
    """Whether one of its parts submits something and returns at once."""
    parts = _parts(command) if isinstance(command, str) else [list(command)]
    return any(_submits(words) for words in parts)


def require_handed_on(name: str, command: Command) -> None:
    """Refuse a command in which a shell has replaced $TTRACE_SETTINGS before we had set it."""
    text = command if isinstance(command, str) else "\n".join(command)
    if _EMPTIED.search(text):
        raise UsageError(
            f"{PACKED} is empty in the {name} command: the shell in which it was typed has "
            f"replaced ${PACKED}, which `ttrace` sets later; write the command in single quotes, "
            "or escape the dollar sign"
        )


def _parts(command: str) -> Iterator[list[str]]:
    """The words of every command of a line of shell; none where quotes are not closed."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=_BETWEEN)
    lexer.whitespace_split, lexer.commenters, lexer.whitespace = True, "", " \t\r"
    try:
        tokens = list(lexer)
    except ValueError:
        return
    words: list[str] = []
    for token in [*tokens, ";"]:
        if token and not token.strip(_BETWEEN):
            yield words
            words = []
        else:
            words.append(token)


def _submits(words: Sequence[str]) -> bool:
    first = next((i for i, word in enumerate(words) if not _ASSIGNMENT.fullmatch(word)), None)
    if first is None:
        return False
    program, *rest = words[first:]
    name = Path(program).name
    if name == "sbatch":
        return not {"--wait", "-W"} & {*rest}
    if name == "kubectl":
        tries = any(word.startswith("--dry-run") for word in rest)
        return not tries and bool({"apply", "create"} & {*rest})
    ours = rest[: rest.index("--")] if "--" in rest else rest
    return name == "ray" and rest[:2] == ["job", "submit"] and "--no-wait" in ours
