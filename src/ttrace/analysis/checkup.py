"""Looks at one trace of one step, and says what a comparison will be able to see."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ttrace.core.checkup import Checkup, Sight, Watched
from ttrace.core.ids import Kind, TensorId, roots_of
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.trace.fingerprint import FINGERPRINT
from ttrace.trace.progress import read_refusals
from ttrace.trace.reader import Trace
from ttrace.trace.store import PathOrUrl

_KINDS = {
    Watched.VALUES: (Kind.OUTPUT,),
    Watched.GRADIENTS: (Kind.GRAD_OUTPUT, Kind.GRAD_INPUT),
    Watched.LOCAL: (Kind.GRAD, Kind.ACCUMULATED_GRAD),
    Watched.REDUCED: (Kind.MAIN_GRAD,),
    Watched.NORM: (Kind.GRAD_NORM,),
    Watched.STATE: (Kind.OPTIMIZER,),
    Watched.UPDATES: (Kind.PARAM_AFTER,),
}
_OF_PARAMETERS = (Watched.LOCAL, Watched.REDUCED, Watched.STATE, Watched.UPDATES)
_Parameter = tuple[str, str]  # module, name
# The outermost list that a module stands in: `layers` of layers.3.experts.7.
_IN_LIST = re.compile(r"(?:(?P<list>.*?)\.)?(?P<index>[0-9]+)(?:\..*)?")


def examine(path: PathOrUrl, *, free_bytes: int, command_seconds: float = 0.0) -> Checkup:
    """Return what was recognised and seen in one trace."""
    trace = Trace.open(path)
    infos = [found.info for found in trace.ranks.values()]
    summaries = [found.summary for found in trace.ranks.values() if found.summary is not None]
    info, ids = infos[0], trace.by_id()
    paths = _module_paths(infos)
    every, layers = _weigh(_stored_once(trace), roots_of(paths))
    return Checkup(
        adapter=info.adapter,
        device=info.device,
        versions=info.versions,
        world_size=trace.world_size,
        ranks=len(trace.ranks),
        unfinished=_unfinished_ranks(trace),
        axes=_axes(infos),
        batch_parts=None if info.batch is None else info.batch[1],
        wrappers=_all(summary.wrappers for summary in summaries),
        optimizers=_all(summary.optimizers for summary in summaries),
        modules=len(paths),
        never_called=_called_nowhere(summaries),
        parameters=len(_parameters(ids)),
        sights=tuple(sights(ids)),
        inferred=_count_inferred(trace),
        tensors=len(ids),
        bytes_per_rank=every.size_bytes // len(infos),
        fingerprint_bytes_per_rank=every.fingerprint_bytes // len(infos),
        layers=len(layers.indices),
        layer_bytes_per_rank=layers.size_bytes // len(infos),
        layer_fingerprint_bytes_per_rank=layers.fingerprint_bytes // len(infos),
        free_bytes=free_bytes,
        command_seconds=command_seconds,
        seconds=max((summary.seconds for summary in summaries), default=0.0),
        recording_seconds=max((s.recording_seconds for s in summaries), default=0.0),
        problems=(*read_refusals(path), *_all(summary.faults for summary in summaries)),
        notes=_all(summary.notes for summary in summaries),
    )


def _module_paths(infos: Sequence[RankInfo]) -> set[str]:
    return {module.path for info in infos for module in info.modules}


def _unfinished_ranks(trace: Trace) -> tuple[int, ...]:
    return tuple(rank for rank, found in sorted(trace.ranks.items()) if found.summary is None)


def _axes(infos: Sequence[RankInfo]) -> dict[str, int]:
    return {axis: size for info in infos for axis, (_, size) in info.axes.items()}


def _records(trace: Trace) -> Iterator[Record]:
    return (record for found in trace.ranks.values() for record in found.records)


def _stored_once(trace: Trace) -> Collection[Record]:
    """The first record of every span: bytes that were stored once may have several records."""
    records = list(_records(trace))
    return {(r.rank, r.location): r for r in reversed(records) if r.location}.values()


def _count_inferred(trace: Trace) -> int:
    """How many ids have records whose layout nobody knows; one rank alone needs none."""
    is_one = trace.world_size == 1
    return 0 if is_one else len({r.id for r in _records(trace) if r.layout is None})


@dataclass(slots=True)
class _Volume:
    """What records of a step take on all ranks; of modules in a list, with their numbers."""

    indices: set[str] = field(default_factory=set)
    size_bytes: int = 0
    fingerprint_bytes: int = 0


def _weigh(stored: Iterable[Record], roots: Collection[str]) -> tuple[_Volume, _Volume]:
    """Return the volume of all records, and of the list of modules that records the most bytes.

    That list is what people call the layers of a model.
    """
    every, lists = _Volume(), dict[str, _Volume]()
    for record in stored:
        match = _IN_LIST.fullmatch(record.id.module)
        volumes = [every]
        if match is not None:
            layers = lists.setdefault(match["list"] or "", _Volume())
            layers.indices.add(match["index"])
            volumes.append(layers)
        fingerprint_bytes = _fingerprint_bytes(record, roots)
        for volume in volumes:
            volume.size_bytes += 0 if record.location is None else record.location.size_bytes
            volume.fingerprint_bytes += fingerprint_bytes
    return every, max(lists.values(), key=lambda layers: layers.size_bytes, default=_Volume())


def _fingerprint_bytes(record: Record, roots: Collection[str]) -> int:
    """What a record takes by fingerprints; samples are recognised by what models are given."""
    is_whole = record.id.kind is Kind.INPUT and record.id.module in roots
    if is_whole or record.payload is not None:
        return 0 if record.location is None else record.location.size_bytes
    return FINGERPRINT.stored_bytes(record)


def sights(ids: Collection[TensorId]) -> Iterator[Sight]:
    """What these tensors are of a step; of parameters that have a gradient, or else of all."""
    parameters = _parameters(ids)
    seen = {watched: [id_ for id_ in ids if id_.kind in kinds] for watched, kinds in _KINDS.items()}
    owners = {watched: _owners(seen[watched], parameters) for watched in _OF_PARAMETERS}
    graded = (owners[Watched.LOCAL] | owners[Watched.REDUCED]) or parameters
    for watched, ids in seen.items():
        if watched in _OF_PARAMETERS:
            found = len(owners[watched] & graded)
            yield Sight(watched=watched, seen=found, expected=len(graded))
        else:
            yield Sight(watched=watched, seen=len(set(ids)))


def _parameters(ids: Iterable[TensorId]) -> set[_Parameter]:
    return {(id_.module, id_.slot) for id_ in ids if id_.kind is Kind.PARAM}


def _owners(ids: Iterable[TensorId], parameters: set[_Parameter]) -> set[_Parameter]:
    """The parameters that these belong to; a state is called by its parameter and its own name."""
    found = set()
    for id_ in ids:
        names = id_.slot.split(".")
        prefixes = (".".join(names[:end]) for end in range(len(names), 0, -1))
        found |= {(id_.module, name) for name in prefixes if (id_.module, name) in parameters}
    return found


def _called_nowhere(summaries: Iterable[Summary]) -> tuple[str, ...]:
    """Modules that no rank which has them has called."""
    never = [set(summary.never_called) for summary in summaries]
    return tuple(sorted(set.intersection(*never))) if never else ()


def _all(found: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for each in found for text in each))
