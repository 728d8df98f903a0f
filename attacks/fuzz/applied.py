"""Mutations applied: a copy of a base with one change in it, until it is undone."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import xxhash

from attacks.forging import Forged, ForgedLine
from attacks.fuzz.base import Base
from attacks.fuzz.mutations import FILES, REMOVED, Mutation, folder_of
from ttrace.trace import journal
from ttrace.trace.dtypes import torch_dtype


class Applied:
    """A mutation in a copy of a base, until `undo`."""

    def __init__(self, copy: Path, base: Base, mutation: Mutation) -> None:
        self._folder = folder_of(copy, mutation.role, mutation.rank)
        self._original = folder_of(base.folder, mutation.role, mutation.rank)
        self._noisy = folder_of(copy, "perturbed", mutation.rank)
        self._original_noisy = folder_of(base.folder, "perturbed", mutation.rank)
        self.mutation = mutation
        self.is_changed = True
        self.line: ForgedLine | None = None  # that was changed, as it was
        self.hits_a_tensor = True  # of a damaged file: whether the bytes of one are changed
        getattr(self, f"_{mutation.kind}")()

    def undo(self) -> None:
        if self._folder.is_symlink() or not self._folder.is_dir():
            self._folder.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        link_copy(self._original, self._folder)
        if self._is_told_by_noise:
            shutil.rmtree(self._noisy)
            link_copy(self._original_noisy, self._noisy)

    def is_repeated(self, record: dict[str, Any]) -> bool:
        """Whether it is recorded twice: by another rank that holds the same, or recomputed."""
        others = [path for path in self._original.parent.glob("rank-*") if path != self._original]
        known = [each for path in others for each in Forged(path).records]
        own = [each for each in Forged(self._original).records if each["id"] == record["id"]]
        if len(own) > 1:
            return True
        keys = ("id", "shape", "layout")
        is_split = record["id"].rpartition(":")[2].startswith(("input", "output", "grad_"))
        return not is_split and any(
            all(each.get(key) == record.get(key) for key in keys) for each in known
        )

    @property
    def _is_told_by_noise(self) -> bool:
        """Whether the perturbed reference is changed, too: else it allows what it differs by."""
        return self.mutation.kind == "data" and self.mutation.role == "reference"

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
        before = holder[last]
        self.is_changed = value != before or type(value) is not type(before)
        if value == REMOVED and before is None:
            self.is_changed = False  # what is not there is nothing
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
        self._unlink()
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
        self._unlink()
        forged.write()

    def _shape(self) -> None:
        """Another shape, with bytes of that size and a layout that fits it."""
        forged = Forged(self._folder)
        stored = [record for record in forged.records if "at" in record]
        record = stored[self.mutation.place[0] % len(stored)]
        shape, split = self.mutation.value, self.mutation.how
        self.is_changed = shape != record["shape"]
        record["shape"] = shape
        record["at"][2] = math.prod(shape) * torch_dtype(record["dtype"]).itemsize
        record.pop("layout", None)
        if split != "plain":
            record["layout"] = _layout(shape, split)
        self._unlink()
        forged.write()

    def _data(self) -> None:
        self._change_data(self._folder)
        if self._is_told_by_noise:
            self._change_data(self._noisy)

    def _change_data(self, folder: Path) -> None:
        forged = Forged(folder)
        stored = [
            line for line in forged.lines if line.key == journal.RECORD and "at" in line.value
        ]
        self.line = line = stored[self.mutation.place[0] % len(stored)]
        segment, offset, size, digest = line.value["at"]
        path = folder / segment
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
        for name in FILES:
            (folder / name).unlink()
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
        before = (self._original / name).read_bytes()
        at = [record["at"] for record in Forged(self._original).records if "at" in record]
        spans = [slice(offset, offset + size) for segment, offset, size, _ in at if segment == name]
        self.hits_a_tensor = any(before[span] != content[span] for span in spans)

    def _unlink(self) -> None:
        """Files are links to those of the base: new ones take their place."""
        for name in (journal.MANIFEST, journal.JOURNAL):
            (self._folder / name).unlink()


def link_copy(source: Path, target: Path) -> None:
    """A copy of a folder whose files are the same as the source's."""
    shutil.copytree(source, target, copy_function=os.link)


def _layout(shape: list[int], split: str) -> dict[str, Any]:
    """Where a local tensor of this shape may sit."""
    if split == "full":
        return {"shape": shape, "runs": [[[0, size]] for size in shape], "partial": []}
    if split == "half":
        whole = [2 * size for size in shape]
        return {"shape": whole, "runs": [[[size, size]] for size in shape], "partial": []}
    if split == "scattered":
        whole = [2 * size for size in shape]
        runs = [[[2 * i, 1] for i in range(min(size, 2000))] for size in shape]
        return {"shape": whole, "runs": runs, "partial": []}
    padded: Any = [[[0, size // 2], [None, size - size // 2]] for size in shape]
    return {"shape": [size // 2 for size in shape], "runs": padded, "partial": ["dp"]}


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
