"""Looks at one trace of one step, and says what a comparison will be able to see."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from ttrace.core.checkup import Checkup, Sight, Watched
from ttrace.core.ids import Kind, TensorId, roots_of
from ttrace.core.record import Record, Summary
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


def examine(path: PathOrUrl, *, free_bytes: int) -> Checkup:
    """What was recognised and seen."""
    trace = Trace.open(path)
    infos = [found.info for found in trace.ranks.values()]
    summaries = [found.summary for found in trace.ranks.values() if found.summary is not None]
    info = infos[0]
    ids = trace.by_id()
    records = [record for found in trace.ranks.values() for record in found.records]
    first = {(r.rank, r.location): r for r in reversed(records) if r.location}
    stored = first.values()
    paths = {module.path for each in infos for module in each.modules}
    roots = roots_of(paths)
    inferred = {r.id for r in records if r.layout is None} if trace.world_size > 1 else set()
    return Checkup(
        adapter=info.adapter,
        device=info.device,
        versions=info.versions,
        world_size=trace.world_size,
        ranks=len(trace.ranks),
        unfinished=tuple(r for r, found in sorted(trace.ranks.items()) if found.summary is None),
        axes={axis: size for each in infos for axis, (_, size) in each.axes.items()},
        batch_parts=None if info.batch is None else info.batch[1],
        wrappers=_all(summary.wrappers for summary in summaries),
        optimizers=_all(summary.optimizers for summary in summaries),
        modules=len(paths),
        never_called=_called_nowhere(summaries),
        parameters=len(_parameters(ids)),
        sights=tuple(sights(ids)),
        inferred=len(inferred),
        tensors=len(ids),
        bytes_per_rank=sum(r.location.size_bytes for r in stored if r.location) // len(infos),
        fingerprint_bytes_per_rank=sum(_fingerprint_bytes(r, roots) for r in stored) // len(infos),
        free_bytes=free_bytes,
        seconds=max((summary.seconds for summary in summaries), default=0.0),
        recording_seconds=max((s.recording_seconds for s in summaries), default=0.0),
        problems=(*read_refusals(path), *_all(summary.faults for summary in summaries)),
        notes=_all(summary.notes for summary in summaries),
    )


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
