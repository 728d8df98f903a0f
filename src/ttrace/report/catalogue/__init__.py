"""Catalogue: all that a report says of each member of an enum, in one row for a member.

    culprits.py    where and why something is wrong: Stage, Phase, Reason, Mistake, Expected
    tensors.py     what is said of one tensor: Finding, Statistic, Verdict, Kind
    notes.py       what is said of a whole comparison: Topic, StepPart, Lost
    sentences.py   sentences of no member, and the pieces that others are made of

Programs switch on the enums, people read the rows: verdicts, culprits and exit codes are the same
whatever stands here. A member that is added to an enum needs its row here, and nothing else.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """The words for one member of an enum; those that it has no use for are empty.

    Fields in braces are filled in by report/wording.py, report/card.py and report/overall.py.
    """

    words: str  # its name, or its sentence
    _: KW_ONLY
    badge: str = ""  # what is wrong, in a few words; none where it only says where
    hint: str = ""  # what to do next in code
    term: str = ""  # what it means, for whoever meets it first
