"""Mutations of traces: what is changed where, as plain data that can be kept and repeated.

Four kinds: a field of a manifest or of a journal line is replaced or removed, lines are removed,
doubled or exchanged, the bytes of a tensor are changed (all three with every checksum made right),
or a file is damaged as it is.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import xxhash
from hypothesis import strategies as st

from attacks.forging import Forged, ForgedLine
from attacks.fuzz.base import ROLES, Base
from attacks.fuzz.values import instead_of
from ttrace.trace import journal
from ttrace.trace.dtypes import torch_dtype

REMOVED = "(removed)"
_FILES = (journal.MANIFEST, journal.JOURNAL, "seg-00000.safetensors")
_DATA = ("doubled", "zeroed", "negated", "reversed", "nan")
_DAMAGE = ("flip", "cut", "insert", "append", "gone", "empty", "folder", "link")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One change of one rank of one trace. `kind`: field, lines, data or file."""

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
            return f"{self.kind} {'.'.join(names) or 'line'}"
        return f"{self.kind} {self.how}"


def mutations(base: Base) -> st.SearchStrategy[Mutation]:
    """Any mutation of these traces."""
    ranks = [
        (role, int(p.name[5:])) for role in ROLES for p in sorted(base.trace(role).glob("rank-*"))
    ]
    forged = {at: Forged(_folder(base.folder, *at)) for at in ranks}
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
        st.sampled_from(_FILES),
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 7),
    )
    return st.one_of(fields, fields, fields, lines, data, files)


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


class Applied:
    """A mutation in a copy of a base, until `undo`."""

    def __init__(self, copy: Path, base: Base, mutation: Mutation) -> None:
        self._folder = _folder(copy, mutation.role, mutation.rank)
        self._original = _folder(base.folder, mutation.role, mutation.rank)
        self.mutation = mutation
        self.is_changed = True
        self.line: ForgedLine | None = None  # that was changed, as it was
        self.hits_a_tensor = True  # of a damaged file: whether the bytes of one are changed
        {"field": self._field, "lines": self._lines, "data": self._data, "file": self._file}[
            mutation.kind
        ]()

    def undo(self) -> None:
        if self._folder.is_symlink() or not self._folder.is_dir():
            self._folder.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        link_copy(self._original, self._folder)

    def _field(self) -> None:
        forged, (*above, last) = Forged(self._folder), self.mutation.place
        document: dict[Any, Any] = {"manifest": forged.manifest}
        document |= {number: line.value for number, line in enumerate(forged.lines)}
        if self.mutation.place[0] != "manifest":
            line = forged.lines[self.mutation.place[0]]
            self.line = ForgedLine(line.key, json.loads(json.dumps(line.value)))
        holder: Any = document
        for key in above:
            holder = holder[key]
        value = self.mutation.value
        self.is_changed = value != holder[last] or type(value) is not type(holder[last])
        if value != REMOVED:
            holder[last] = value
        elif above:
            del holder[last]
        else:
            holder[last] = {}
        manifest = document.pop("manifest")
        forged.manifest = manifest if isinstance(manifest, dict) else {"instead": manifest}
        for number, line_value in document.items():
            forged.lines[number].value = line_value
        self._unlink(journal.MANIFEST, journal.JOURNAL)
        forged.write()

    def _lines(self) -> None:
        forged = Forged(self._folder)
        first, second, counted = self.mutation.place
        first, second = first % len(forged.lines), second % len(forged.lines)
        line = self.line = forged.lines[first]
        if self.mutation.how == "removed":
            del forged.lines[first]
        elif self.mutation.how == "doubled":
            forged.lines.insert(second, line)
        else:
            forged.lines[first], forged.lines[second] = forged.lines[second], line
            self.is_changed = first != second
        if counted:
            _count_again(forged)
        self._unlink(journal.MANIFEST, journal.JOURNAL)
        forged.write()

    def _data(self) -> None:
        forged = Forged(self._folder)
        stored = [
            line for line in forged.lines if line.key == journal.RECORD and "at" in line.value
        ]
        self.line = line = stored[self.mutation.place[0] % len(stored)]
        segment, offset, size, digest = line.value["at"]
        path = self._folder / segment
        content = bytearray(path.read_bytes())
        values = torch.frombuffer(
            bytearray(content[offset : offset + size]), dtype=torch_dtype(line.value["dtype"])
        )
        other = _changed(values, self.mutation.how)
        self.is_changed = not torch.equal(other, values)
        content[offset : offset + size] = other.view(torch.uint8).numpy().tobytes()
        now = xxhash.xxh3_64_hexdigest(bytes(content[offset : offset + size]))
        for each in stored:
            if each.value["at"][:2] == [segment, offset] and each.value["at"][3] == digest:
                each.value["at"][3] = now
        self._unlink(*_FILES)
        path.write_bytes(content)
        forged.write()

    def _file(self) -> None:
        name, where, bit = self.mutation.place
        path = self._folder / name
        content = bytearray(path.read_bytes())
        place = int(where * len(content))
        path.unlink()
        how = self.mutation.how
        if how == "gone":
            return
        if how == "folder":
            path.mkdir()
            return
        if how == "link":
            path.symlink_to(self._original / name)
            return
        self.hits_a_tensor = self._hits(name, place, how)
        if how == "flip":
            content[place] ^= 1 << bit
        elif how == "cut":
            del content[place:]
        elif how == "insert":
            content[place:place] = b"\0" * (bit + 1)
        elif how == "append":
            content += bytes(content[place : place + 100]) or b"x"
        elif how == "empty":
            content = bytearray()
        path.write_bytes(content)

    def _hits(self, name: str, place: int, how: str) -> bool:
        at = [record["at"] for record in Forged(self._original).records if "at" in record]
        spans = [(offset, offset + size) for segment, offset, size, _ in at if segment == name]
        if how == "flip":
            return any(start <= place < stop for start, stop in spans)
        return how != "append" and any(place < stop for _, stop in spans)

    def _unlink(self, *names: str) -> None:
        """Files are links to those of the base: a new one takes their place."""
        for name in names:
            data = (self._folder / name).read_bytes()
            (self._folder / name).unlink()
            (self._folder / name).write_bytes(data)


def link_copy(source: Path, target: Path) -> None:
    """A copy of a folder whose files are the same as the source's."""
    shutil.copytree(source, target, copy_function=os.link)


def _folder(root: Path, role: str, rank: int) -> Path:
    return root / role / journal.rank_folder(rank)


def _count_again(forged: Forged) -> None:
    count = 0
    for line in forged.lines:
        if line.key == journal.RECORD:
            count += 1
        else:
            line.value = {**line.value, "records": count}


def _changed(values: torch.Tensor, how: str) -> torch.Tensor:
    if how == "doubled":
        return (values * 2).to(values.dtype)
    if how == "zeroed":
        return torch.zeros_like(values)
    if how == "negated":
        return -values
    if how == "reversed":
        return values.flip(0)
    return torch.full_like(values, torch.nan) if values.is_floating_point() else values + 1
