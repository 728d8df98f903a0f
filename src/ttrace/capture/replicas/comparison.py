"""Whether replicas agree after a step: one all-reduce, and a closer look where they do not.

Every rank puts its digests into the places of what several ranks hold, and something smaller than
any digest elsewhere. The largest of a number and of its negative are the same number if and only if
all who have one agree. Only then ranks tell each other what they have.

Who is a replica of whom? Ranks that hold the same part of the same tensor:

    name, part, scope                       a replica, where the framework says so
    name, part, and the first content       else: shards of hand-written parallelism look alike,
                                            but for their values

A module whose layout the framework does not tell is recognised by all of its parameters together:
a bias of zeros alone says nothing. Buffers and gradients are recognised one by one, whatever the
framework says: running statistics differ under DDP, and some optimizers reduce gradients
themselves.

Enters: digests of this rank after a step. Leaves: drifts, the same on all ranks.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from ttrace.capture.replicas.exchange import Exchange, NotAnswered
from ttrace.capture.replicas.held import ReplicaName
from ttrace.core.drift import Drift, SharedKind, versions_of

_ABSENT = -(1 << 40)  # chosen: below the halves of digests, which have 32 bits, and their negatives
_HEAD = 3  # numbers before the digests: whether the table is old, the step, its negative
_HALF = (1 << 32) - 1
# Chosen: statistics of a layer whose input is still zero stay alike for a few steps.
_MANY_CHANGES = 8
_MOST_LOOKED_AT = 256  # chosen: tensors of one step; their names of all ranks are some 30 KB a rank
_KINDS = tuple(SharedKind)
_COLUMNS = 3  # of a table: hash of the name, of name and content, number of the kind


class Comparison:
    """Knows what was found before: a tensor drifts once."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._settled: set[int] = set()  # places that are not looked at again
        self.not_looked_at = 0  # tensors that differ, beyond those of one look
        self.own_states = 0  # buffers that are no replicas, as it turned out
        self.roll, self.world = Roll(), World()

    @property
    def unjudged(self) -> Mapping[SharedKind, int]:
        found = dict(self.world.unjudged)
        buffers = found.get(SharedKind.BUFFER, 0) + self.own_states
        return found | ({SharedKind.BUFFER: buffers} if buffers else {})

    def after(self, step: int, digests: Mapping[ReplicaName, int]) -> list[Drift]:
        """What differs since this step."""
        is_new = self.roll.meet(digests)
        while True:
            apart = self._apart(step, digests, is_new=is_new)
            if apart is not None:
                break
            settled = {full for full, at in self.world.places.items() if at in self._settled}
            self.world, is_new = World.of(self._exchange.all_of(self.roll.table())), False
            self._settled = {at for full, at in self.world.places.items() if full in settled}
        drifts = list(self._look(step, digests, apart)) if apart else []
        for name, digest in digests.items():
            if (entry := self.roll.entries.get(name)) is not None:
                entry.changes += entry.last != digest
                entry.last = digest
        return drifts

    def _apart(
        self, step: int, digests: Mapping[ReplicaName, int], *, is_new: bool
    ) -> Sequence[int] | None:
        """The places where ranks differ; None where some rank holds what the table lacks."""
        held = np.full((4, len(self.world.places)), _ABSENT, dtype=np.int64)
        for place, digest in self._placed(digests).items():
            high, low = digest >> 32, digest & _HALF
            held[:, place] = high, low, -high, -low
        vector = np.concatenate([[int(is_new), step, -step], held.ravel()])
        found = self._exchange.largest(vector.astype(np.int64))
        if found[1] != -found[2]:
            raise NotAnswered(
                f"ranks made different numbers of steps: {-found[2]} and {found[1]} when they met"
            )
        if found[0]:
            return None
        largest = found[_HEAD:].reshape(4, -1)
        differs = (largest[:2] != -largest[2:]).any(0) & (largest[0] != _ABSENT)
        return [int(at) for at in np.flatnonzero(differs) if int(at) not in self._settled]

    def _placed(self, digests: Mapping[ReplicaName, int]) -> dict[int, int]:
        entries = ((self.roll.entries.get(name), digest) for name, digest in digests.items())
        placed = ((self.world.places.get(e.full), digest) for e, digest in entries if e is not None)
        return {place: digest for place, digest in placed if place is not None}

    def _look(
        self, step: int, digests: Mapping[ReplicaName, int], apart: Sequence[int]
    ) -> Iterator[Drift]:
        """What every rank has of these, and which of it is drift; in the order of the model."""
        self._settled.update(apart)
        self.not_looked_at += len(apart[_MOST_LOOKED_AT:])
        apart = apart[:_MOST_LOOKED_AT]
        mine = {
            place: _told(entry, digests[name])
            for name, entry in self.roll.entries.items()
            if name in digests and (place := self.world.places.get(entry.full)) in apart
        }
        told = [json.loads(text) for text in self._exchange.all_of(json.dumps(mine).encode())]
        found = []
        for place in apart:
            who = {rank: each[str(place)] for rank, each in enumerate(told) if str(place) in each}
            if _is_own_state(list(who.values())):
                self.own_states += 1
            else:
                found.append((next(iter(who.values()))["order"], _drift(step, who)))
        kinds = list(SharedKind)
        found.sort(key=lambda each: (kinds.index(each[1].kind), each[0]))
        yield from (drift for _, drift in found)


def _told(entry: Entry, digest: int) -> dict[str, Any]:
    name = entry.name
    return {
        "name": [name.kind, name.module, name.name, name.box],
        "digest": f"{digest:016x}",
        "order": entry.order,
        "changed": entry.last != digest,
        "changes": entry.changes,
        "scope": bool(name.scope),
    }


def _is_own_state(told: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a buffer holds what each rank gathers for itself.

    All of them changed it, and it did not stay alike through many changes before. What changed on
    some ranks only was the same for all.
    """
    if told[0]["name"][0] != SharedKind.BUFFER or not all(each["changed"] for each in told):
        return False
    return not (told[0]["scope"] and min(each["changes"] for each in told) >= _MANY_CHANGES)


def _drift(step: int, who: Mapping[int, Mapping[str, Any]]) -> Drift:
    kind, module, name, box = next(iter(who.values()))["name"]
    return Drift(
        step=step,
        kind=SharedKind(kind),
        module=module,
        name=name,
        box=box,
        versions=versions_of({rank: each["digest"] for rank, each in who.items()}),
    )


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
