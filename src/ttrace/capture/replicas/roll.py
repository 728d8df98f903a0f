"""Who is a replica of whom: ranks that hold the same part of the same tensor.

    name, part, scope                       a replica, where the framework says so
    name, part, and the first content       else: shards of hand-written parallelism look alike,
                                            but for their values

Enters: names and digests of this rank, and the tables of all ranks. Leaves: a number for everything
that several ranks hold, the same on all of them.

A module whose layout the framework does not tell is recognised by all of its parameters together:
a bias of zeros alone says nothing. Buffers and gradients are recognised one by one, whatever the
framework says: running statistics differ under DDP, and some optimizers reduce gradients
themselves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash

from ttrace.capture.replicas.held import ReplicaName
from ttrace.core.drift import SharedKind

_KINDS = tuple(SharedKind)
_COLUMNS = 3  # of a table: hash of the name, of name and content, number of the kind


@dataclass(slots=True)
class Entry:
    """One tensor of this rank."""

    name: ReplicaName
    base: int
    full: int
    order: int
    last: int  # its digest when it was compared last
    changes: int = 0  # in how many comparisons it was another one than before


@dataclass(slots=True)
class Roll:
    """What this rank holds, as far as it was seen; it only grows."""

    entries: dict[ReplicaName, Entry] = field(default_factory=dict)

    def meet(self, found: Mapping[ReplicaName, int]) -> bool:
        """Whether there is anything new.

        A gradient of zeros is not: it says nothing of who is a replica.
        """
        new = {
            name: digest
            for name, digest in found.items()
            if name not in self.entries and (digest or name.kind is not SharedKind.GRADIENT)
        }
        modules = _contents_of_modules(new)
        for name, digest in new.items():
            content = "" if name.scope else modules.get(name.module, "")
            content = content if name.kind is SharedKind.PARAMETER else f"{content} {digest}"
            base = _hash(repr(name))
            self.entries[name] = Entry(
                name=name,
                base=base,
                full=_hash(f"{base} {content}"),
                order=len(self.entries),
                last=digest,
            )
        return bool(new)

    def table(self) -> bytes:
        rows = [(e.base, e.full, _KINDS.index(e.name.kind)) for e in self.entries.values()]
        return np.array(rows, dtype=np.uint64).tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What several ranks hold."""

    places: Mapping[int, int] = field(default_factory=dict)  # by the hash of name and content
    compared: Mapping[SharedKind, int] = field(default_factory=dict)
    unjudged: Mapping[SharedKind, int] = field(default_factory=dict)
    unlike: frozenset[int] = frozenset()  # hashes of the names of these

    @classmethod
    def of(cls, tables: Iterable[bytes]) -> World:
        holders: Counter[int] = Counter()
        kinds: dict[int, SharedKind] = {}
        contents: dict[int, set[int]] = defaultdict(set)
        for table in tables:
            rows = np.frombuffer(table, dtype=np.uint64).reshape(-1, _COLUMNS).tolist()
            for base, full, kind in rows:
                holders[full] += 1
                kinds[full] = kinds[base] = _KINDS[kind]
                contents[base].add(full)
        shared = sorted(full for full, count in holders.items() if count > 1)
        unlike = frozenset(base for base, found in contents.items() if len(found) > 1)
        return cls(
            places={full: place for place, full in enumerate(shared)},
            compared=_counted(kinds[full] for full in shared),
            unjudged=_counted(kinds[base] for base in unlike),
            unlike=unlike,
        )


def names_of(roll: Roll, world: World, most: int) -> Sequence[str]:
    """Of tensors that are not judged, those that this rank has."""
    found = (e.name for e in roll.entries.values() if e.base in world.unlike)
    return [f"{n.kind} {n.module}.{n.name}" for n, _ in zip(found, range(most), strict=False)]


def _contents_of_modules(found: Mapping[ReplicaName, int]) -> dict[str, str]:
    """By the path of the module."""
    texts: dict[str, list[str]] = defaultdict(list)
    for name, digest in found.items():
        if name.kind is SharedKind.PARAMETER and not name.scope:
            texts[name.module].append(f"{name.name} {name.box} {digest}")
    return {module: "\n".join(sorted(lines)) for module, lines in texts.items()}


def _counted(kinds: Iterable[SharedKind]) -> dict[SharedKind, int]:
    found = Counter(kinds)
    return {kind: found[kind] for kind in SharedKind if found[kind]}


def _hash(text: str) -> int:
    value: int = xxhash.xxh3_64_intdigest(text.encode())
    return value
