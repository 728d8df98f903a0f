"""How far a run is: whether every rank of its world has closed its trace, and how the run ended.

    TRACE/rank-00003/journal.jsonl    the last line is its end, once all steps are recorded
          died.txt                    the run had recorded everything and did not end well
          not-attached-4711.txt       why a process of it could not be traced

Enters: a folder that processes may still write or upload into. It is asked again and again while
they run, so nothing is read but manifests and the last lines of journals.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ttrace.errors import TraceError
from ttrace.trace import journal
from ttrace.trace.files import TraceFiles, files_of, rank_names
from ttrace.trace.store import PathOrUrl

_DIED = "died.txt"
REFUSED = "not-attached-"  # and the process that says so
_MOST_BYTES = 1 << 20  # chosen: an end that lists many tensors is shorter
_MOST_CHARS = 200  # chosen: a name of a signal, and room
_MOST_REASONS = 3  # chosen: ranks tend to have the same


def is_recorded(folder: PathOrUrl, steps: int) -> bool:
    """Whether all ranks of the world have closed traces of so many steps."""
    try:
        files = files_of(folder)
        ranks = rank_names(files)
        if not ranks:
            return False
        with files.open(f"{ranks[0]}/{journal.MANIFEST}", holds="a manifest") as file:
            count = int(json.load(file)["world_size"])
        return len(ranks) >= count and all(
            _has_recorded(files, journal.rank_folder(rank), steps) for rank in range(count)
        )
    except (TraceError, OSError, ValueError, KeyError, TypeError):
        return False  # not written yet, or not ours: whoever reads the trace says what is wrong


def write_death(folder: PathOrUrl, how: str) -> None:
    """Say beside a whole trace that its run did not end well."""
    (folder / _DIED).write_text(how, encoding="utf-8")


def read_death(folder: PathOrUrl) -> str | None:
    """How a run ended that had recorded everything; None where it ended well."""
    try:
        return _text_of(folder / _DIED, _MOST_CHARS)
    except (TraceError, OSError):
        return None


def write_refusal(folder: Path, why: str) -> None:
    """Say beside the ranks of a trace why this process could not be traced."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{REFUSED}{os.getpid()}.txt").write_text(why, encoding="utf-8")


def read_refusals(folder: PathOrUrl) -> tuple[str, ...]:
    """Why processes of a run could not be traced, or its bytes not uploaded; each reason once."""
    found: dict[str, None] = {}
    for name in files_of(folder).beside():
        if name.startswith(REFUSED) and name.endswith(".txt"):
            found[_text_of(folder / name, 2 * _MOST_CHARS)] = None
    return tuple(found)[:_MOST_REASONS]


def _text_of(place: PathOrUrl, most_chars: int) -> str:
    with place.open("rb") as file:
        return file.read(4 * most_chars).decode("utf-8", errors="replace")[:most_chars]


def _has_recorded(files: TraceFiles, rank: str, steps: int) -> bool:
    """Whether a rank has closed its trace, with so many steps or all that it had room for."""
    end = journal_end(files, rank)
    return end is not None and (int(end["steps"]) >= steps or end.get("is_full") is True)


def journal_end(files: TraceFiles, rank: str) -> Any:
    """The last line of a rank's journal, if that is its end; nobody has looked at it closely."""
    lines = files.tail(f"{rank}/{journal.JOURNAL}", _MOST_BYTES).splitlines(keepends=True)
    return journal.unverified_end(lines[-1] if lines else b"")
