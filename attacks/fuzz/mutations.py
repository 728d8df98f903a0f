"""Mutations of traces: what is changed where, as plain data that can be kept and repeated.

Five kinds: a field of a manifest or of a journal line is replaced or removed, lines are removed,
doubled or exchanged, a record gets another shape in all of its fields, the bytes of a tensor are
changed (all with every checksum made right), or a file is damaged as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from attacks.forging import Forged
from attacks.fuzz.base import ROLES, Base
from attacks.fuzz.values import instead_of
from ttrace.trace import journal

REMOVED = "(removed)"
FILES = (journal.MANIFEST, journal.JOURNAL, "seg-00000.safetensors")
_SHAPES: list[list[int]] = [
    [0],
    [1 << 40, 0],
    [0, 1 << 47],
    [1] * 64,
    [0] * 64,
    [1 << 20],
    [1 << 10, 1 << 10],
    [*[1] * 30, 4, 6],
    [6, 4],
    [24],
    [2, 2, 6],
    [4, 6, 1],
]
_DATA = ("doubled", "zeroed", "negated", "reversed", "nan")
_DAMAGE = ("flip", "cut", "insert", "append", "gone", "empty", "folder", "link")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One change of one rank of one trace. `kind`: field, lines, shape, data or file."""

    role: str
    rank: int
    kind: str
    place: list[Any] = field(default_factory=list)  # "manifest" or a line's number, then keys
    how: str = ""
    value: Any = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def about(self) -> str:
        """What is changed, without numbers: for a table."""
        if self.kind == "field":
            names = [str(key) for key in self.place if not isinstance(key, int)]
            return f"{self.role}: {self.kind} {'.'.join(names) or 'line'}"
        return f"{self.role}: {self.kind} {self.how}"


def mutations(base: Base) -> st.SearchStrategy[Mutation]:
    """Any mutation of these traces."""
    ranks = [
        (role, int(p.name[5:])) for role in ROLES for p in sorted(base.trace(role).glob("rank-*"))
    ]
    forged = {at: Forged(folder_of(base.folder, *at)) for at in ranks}
    places = [(at, place, value) for at in ranks for place, value in _places(forged[at])]
    fields = st.sampled_from(places).flatmap(_field)
    lines = st.builds(
        lambda at, how, first, second, counted: Mutation(
            role=at[0], rank=at[1], kind="lines", how=how, place=[first, second, counted]
        ),
        st.sampled_from(ranks),
        st.sampled_from(["removed", "doubled", "exchanged"]),
        st.integers(0, 1 << 16),
        st.integers(0, 1 << 16),
        st.booleans(),
    )
    data = st.builds(
        lambda at, how, line: Mutation(role=at[0], rank=at[1], kind="data", how=how, place=[line]),
        st.sampled_from(ranks),
        st.sampled_from(_DATA),
        st.integers(0, 1 << 16),
    )
    files = st.builds(
        lambda at, how, file, where, bit: Mutation(
            role=at[0], rank=at[1], kind="file", how=how, place=[file, where, bit]
        ),
        st.sampled_from(ranks),
        st.sampled_from([*["flip"] * 4, *_DAMAGE]),
        st.sampled_from(FILES),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 7),
    )
    shapes = st.builds(
        lambda at, shape, line, split: Mutation(
            role=at[0], rank=at[1], kind="shape", how=split, place=[line], value=shape
        ),
        st.sampled_from(ranks),
        st.one_of(st.sampled_from(_SHAPES), st.lists(st.integers(0, 6), max_size=6)),
        st.integers(0, 1 << 16),
        st.sampled_from(["plain", "full", "half", "scattered", "padded"]),
    )
    return st.one_of(fields, fields, fields, lines, shapes, data, files)


def _field(place: tuple[tuple[str, int], list[Any], Any]) -> st.SearchStrategy[Mutation]:
    (role, rank), keys, value = place
    return st.one_of(st.just(REMOVED), instead_of(value), instead_of(value)).map(
        lambda other: Mutation(role=role, rank=rank, kind="field", place=keys, value=other)
    )


def _places(forged: Forged) -> Iterator[tuple[list[Any], Any]]:
    yield from _within(["manifest"], forged.manifest)
    for number, line in enumerate(forged.lines):
        yield from _within([number], line.value)


def _within(place: list[Any], value: Any) -> Iterator[tuple[list[Any], Any]]:
    yield place, value
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from _within([*place, key], inner)


def folder_of(root: Path, role: str, rank: int) -> Path:
    """Where a rank of a base, or of a copy of one, is."""
    return root / role / journal.rank_folder(rank)
