"""The stages in order: from traces on disk to a result. The only place where they meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ttrace.analysis.align import Aligned, Alignment, align
from ttrace.analysis.compare.compare import (
    Comparator,
    LossScale,
    Measured,
    Pair,
    find_isolated_scale,
    find_loss_scale,
    judge,
)
from ttrace.analysis.compare.tokens import moved_before, with_moves
from ttrace.analysis.diagnose.examine import Examiner, earlier, suspects, with_diagnoses, with_ranks
from ttrace.analysis.localize import localize, localize_isolated
from ttrace.analysis.tolerance import Yardstick, tolerances
from ttrace.analysis.tolerance.jump import largest_jump
from ttrace.analysis.tolerance.moves import allowed_moves
from ttrace.core.evidence import Detail, RunFacts
from ttrace.core.ids import MASTER, Kind, TensorId
from ttrace.core.logical import LogicalTensor, as_terms
from ttrace.core.record import ModuleInfo
from ttrace.core.results import CheckResult, Coverage, TensorResult, Tolerance, Verdict
from ttrace.core.scale import Scales, declared_scale
from ttrace.core.statistics import Statistics
from ttrace.errors import CannotCompare
from ttrace.trace.blocks import BlockReader
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader

Progress = Callable[[str, int, int], None]  # what, done, of how many

# The run to blame for what is not there, unless its recording had faults: then nobody knows.
_LACKING = {
    Verdict.MISSING: "candidate",
    Verdict.INCOMPLETE: "candidate",
    Verdict.EXTRA: "reference",
}


def check(
    reference: Path | str,
    candidate: Path | str,
    perturbed: Sequence[Path | str] = (),
    progress: Progress | None = None,
    *,
    repeated: Path | str | None = None,
    isolated: Scales | None = None,
) -> CheckResult:
    """Compare two traces; perturbed references say how much rounding explains.

    `repeated`: the reference once more as it is, which tells whether it is deterministic; where it
    is not, the distance between the two counts as noise.
    `isolated`: the candidate's and the perturbed reference's modules all started from the values of
    the reference, which was recorded with taps; the candidate's gradients have one of these scales.
    """
    report = progress or (lambda *_: None)
    ours, theirs = Trace.open(reference), Trace.open(candidate)
    noisy = [Trace.open(path) for path in perturbed]
    _require_comparable(ours, theirs, noisy)
    again = [] if repeated is None else [Trace.open(repeated)]
    with ExitStack() as stack:
        traces = (ours, theirs, *noisy, *again)
        spans = {id(t): stack.enter_context(SpanReader(t.path)) for t in traces}
        noise = [
            _measure(ours, trace, spans, f"noise {number + 1} of {len(noisy)}", report).measured
            for number, trace in enumerate(noisy)
        ]
        repetition = ""
        for trace in again:
            _require_whole("repeated reference", trace)
            noise.append(_measure(ours, trace, spans, "repeated reference", report).measured)
            repetition = _repetition_note(noise[-1])
        compared = _measure(ours, theirs, spans, "candidate", report, scales=isolated)
        aligned = compared.aligned
        yardsticks = _yardsticks(aligned, noise, BlockReader(spans[id(ours)]))
        allowed = tolerances(yardsticks, isolated=isolated is not None)
        faults = {"reference": _faults(ours), "candidate": _faults(theirs)}
        moves = allowed_moves([found.moved for run in noise for found in run.values()])
        moved = {} if isolated is None else compared.moved()
        results = tuple(
            with_moves(
                _verdict(alignment, compared.measured.get(alignment.id), allowed, order, faults),
                compared.measured.get(alignment.id),
                moves + moved_before(alignment.id, moved),
            )
            for order, alignment in enumerate(aligned.tensors)
            if not alignment.stored_elsewhere and not _is_of_one_framework(alignment)
        )
        coverage = _coverage(theirs)
        if isolated is None:
            culprits = localize(results, aligned.consumers)
        else:
            culprits = localize_isolated(
                results,
                unfired=frozenset(coverage.unfired),
                displaced={r.id for r in results if moved_before(r.id, moved)},
            )
        details = _details(
            suspects(results, culprits),
            compared,
            Examiner(spans[id(ours)], spans[id(theirs)]),
            _sizes(theirs),
            report,
        )
    return CheckResult(
        reference=str(reference),
        candidate=str(candidate),
        perturbed=tuple(str(path) for path in perturbed),
        tensors=with_ranks(results, details),
        culprits=with_diagnoses(culprits, details),
        coverage=coverage,
        notes=tuple(
            note
            for note in (
                *_trace_notes(theirs),
                *aligned.candidate_batch.notes,
                *aligned.notes,
                _inferred_note(aligned),
                compared.scale.note,
                repetition,
            )
            if note
        ),
        details=details,
        runs=(
            _facts("reference", ours),
            _facts("candidate", theirs),
            *(_facts("perturbed", trace) for trace in noisy),
        ),
        modules=_all_modules(theirs),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """Two traces measured against each other, and the pairs as they were measured."""

    aligned: Aligned
    pairs: dict[TensorId, Pair]
    measured: dict[TensorId, Measured]
    scale: LossScale

    def moved(self) -> dict[TensorId, int]:
        return {id_: found.moved for id_, found in self.measured.items() if found.moved}

    def factor(self, id_: TensorId) -> float:
        return self.scale.factor if id_.kind.carries_loss_scale else 1.0


def _measure(
    reference: Trace,
    candidate: Trace,
    spans: dict[int, SpanReader],
    what: str,
    report: Progress,
    scales: Scales | None = None,
) -> _Compared:
    aligned = align(
        reference,
        candidate,
        reference_spans=spans[id(reference)],
        candidate_spans=spans[id(candidate)],
    )
    comparator = Comparator(spans[id(reference)], spans[id(candidate)])
    pairs = {a.id: pair for a in aligned.tensors if (pair := _pair(a)) is not None}
    if scales is None:
        scale = find_loss_scale(
            comparator,
            list(pairs.items()),
            reference_splits=aligned.reference_batch.splits_of_batch(),
            candidate_splits=aligned.candidate_batch.splits_of_batch(),
            declared=declared_scale(reference.loss_parts, candidate.loss_parts),
        )
    else:
        scale = find_isolated_scale(comparator, list(pairs.items()), scales)
    compared = _Compared(aligned=aligned, pairs=pairs, measured={}, scale=scale)
    for number, (id_, (expected, found)) in enumerate(list(pairs.items())):
        report(what, number, len(pairs))
        factor = compared.factor(id_)
        measured = comparator.measure(expected, found, factor)
        if id_.kind.is_unreduced and measured.disagreements:
            measured, found = _summed_if_nearer(comparator, (expected, found), factor, measured)
            pairs[id_] = (expected, found)
        compared.measured[id_] = measured
    report(what, len(pairs), len(pairs))
    return compared


def _summed_if_nearer(
    comparator: Comparator, pair: Pair, factor: float, as_replicas: Measured
) -> tuple[Measured, LogicalTensor]:
    expected, found = pair
    terms = as_terms(found)
    if terms is None:
        return as_replicas, found
    as_sum = comparator.measure(expected, terms, factor)
    nearer = as_sum.statistics.error_norm < as_replicas.statistics.error_norm
    return (as_sum, terms) if nearer else (as_replicas, found)


def _details(
    wanted: Sequence[TensorResult],
    compared: _Compared,
    examiner: Examiner,
    sizes: Mapping[str, int],
    report: Progress,
) -> tuple[Detail, ...]:
    details = []
    for number, result in enumerate(wanted):
        report("suspects", number, len(wanted))
        source = earlier(result.id)
        before = None if source is None else compared.pairs.get(source)
        details.append(
            examiner.examine(
                result,
                *compared.pairs[result.id],
                compared.factor(result.id),
                before=None if before is None else before[1],
                sizes=sizes,
            )
        )
    if wanted:
        report("suspects", len(wanted), len(wanted))
    return tuple(details)


def _sizes(trace: Trace) -> dict[str, int]:
    """Numbers by which a sum and a mean may be mistaken for each other."""
    info = next(iter(trace.ranks.values())).info
    sizes = {f"the size of {axis}": size for axis, (_, size) in info.axes.items()}
    microbatches = {r.microbatch for rank in trace.ranks.values() for r in rank.records}
    return sizes | {
        "the number of ranks": trace.world_size,
        "the number of microbatches": len(microbatches),
    }


def _facts(role: str, trace: Trace) -> RunFacts:
    info = next(iter(trace.ranks.values())).info
    dtypes = {
        r.dtype for rank in trace.ranks.values() for r in rank.records if r.id.kind is Kind.PARAM
    }
    return RunFacts.of(role, str(trace.path), info, len(trace.steps), sorted(dtypes))


def _all_modules(trace: Trace) -> tuple[ModuleInfo, ...]:
    """Of all ranks: in a pipeline each holds a part of the model."""
    found = {m.path: m for _, rank in sorted(trace.ranks.items()) for m in rank.info.modules}
    return tuple(found.values())


def _is_of_one_framework(alignment: Alignment) -> bool:
    """Whether only one of the two has a place in which gradients wait for their reduction."""
    lacks = alignment.reference is None or alignment.candidate is None
    return lacks and alignment.id.kind is Kind.ACCUMULATED_GRAD and not alignment.candidate_problem


def _pair(alignment: Alignment) -> Pair | None:
    """Both sides, when they can be measured against each other."""
    reference, candidate = alignment.reference, alignment.candidate
    if reference is None or candidate is None:
        return None
    if reference.gaps or candidate.gaps or reference.shape != candidate.shape:
        return None
    return reference, candidate


def _yardsticks(
    aligned: Aligned, noise: Sequence[dict[TensorId, Measured]], reader: BlockReader
) -> dict[TensorId, Yardstick]:
    tensors = {
        a.id: a.reference
        for a in aligned.tensors
        if a.reference is not None and a.reference.pieces and not a.reference.gaps
    }
    noises = {id_: [run[id_].statistics for run in noise if id_ in run] for id_ in tensors}
    return {
        id_: Yardstick(
            dtype=reference.dtype,
            volume=reference.volume,
            sequence=reference.sequence,
            noise=tuple(noises[id_]),
            jump=_jump(id_, tensors, noises, reader),
        )
        for id_, reference in tensors.items()
    }


def _jump(
    id_: TensorId,
    tensors: Mapping[TensorId, LogicalTensor],
    noises: Mapping[TensorId, Sequence[Statistics]],
    reader: BlockReader,
) -> float:
    before = replace(id_, kind=Kind.PARAM)
    gradient = replace(id_, kind=Kind.MAIN_GRAD, slot=id_.slot.removesuffix(MASTER))
    if id_.kind is not Kind.PARAM_AFTER or not noises.get(gradient) or before not in tensors:
        return 0.0
    return largest_jump(
        reader,
        before=tensors[before],
        gradient=tensors[gradient],
        after=tensors[id_],
        gradient_noise=max(statistics.error_norm for statistics in noises[gradient]),
    )


def _verdict(
    alignment: Alignment,
    measured: Measured | None,
    allowed: Mapping[TensorId, Tolerance],
    order: int,
    faults: Mapping[str, Sequence[str]],
) -> TensorResult:
    pair = _pair(alignment)
    if pair is not None and measured is not None:
        return judge(alignment.id, pair, measured, allowed.get(alignment.id), order)
    reference, candidate = alignment.reference, alignment.candidate
    if alignment.reference_problem:
        verdict, note = Verdict.UNDECIDED, f"reference: {alignment.reference_problem}"
    elif alignment.candidate_problem:
        verdict, note = Verdict.SHAPE, alignment.candidate_problem
    elif candidate is None:
        verdict, note = Verdict.MISSING, "only in the reference"
    elif reference is None:
        verdict, note = Verdict.EXTRA, "only in the candidate"
    elif reference.gaps:
        verdict, note = Verdict.UNDECIDED, f"the reference itself lacks {reference.gaps[0]}"
    else:
        gaps = ", ".join(str(gap) for gap in candidate.gaps[:3])
        verdict, note = Verdict.INCOMPLETE, f"no rank holds {gaps} of {list(reference.shape)}"
    lacking = _LACKING.get(verdict, "")
    if faults.get(lacking):
        verdict = Verdict.UNDECIDED
        note += f", but the {lacking} could not be recorded whole: {faults[lacking][0]}"
    side = candidate or reference
    return TensorResult(
        id=alignment.id,
        verdict=verdict,
        order=order,
        shape=() if side is None else side.shape,
        dtype="" if side is None or not side.pieces else side.dtype,
        note=note,
    )


def _inferred_note(aligned: Aligned) -> str:
    inferred = [a.id for a in aligned.tensors if a.candidate is not None and a.candidate.notes]
    if not inferred:
        return ""
    return (
        f"layout inferred from the shape: {len(inferred)} tensors, first {inferred[0]}; nothing "
        "else says how ranks share them (ttrace.annotate does)"
    )


def _repetition_note(measured: Mapping[TensorId, Measured]) -> str:
    differing = [id_ for id_, found in measured.items() if not found.statistics.equal]
    if not differing:
        return f"the reference is deterministic: {len(measured)} tensors are bitwise equal again"
    return (
        f"the reference is not deterministic: {len(differing)} of {len(measured)} tensors differ "
        f"between two runs of it, first {differing[0]}; that distance counts as noise"
    )


def _require_comparable(reference: Trace, candidate: Trace, noisy: Sequence[Trace]) -> None:
    for what, trace in (("reference", reference), ("candidate", candidate)):
        _require_whole(what, trace)
    for trace in noisy:
        _require_whole("perturbed reference", trace)
        seeds = {rank.info.perturbed for rank in trace.ranks.values()}
        if None in seeds:
            raise CannotCompare(
                f"{trace.path} was given as a perturbed reference but was recorded without noise; "
                "record it with `ttrace run --noise SEED`"
            )
    if reference.steps != candidate.steps:
        raise CannotCompare(
            f"the reference {reference.path} has steps {list(reference.steps)}, the candidate "
            f"{candidate.path} has {list(candidate.steps)}; record the same number with --steps"
        )
    # The root's tensors have the same ids in all models; they count where there is nothing else.
    ours, theirs = _modules(reference), _modules(candidate)
    common = ours & theirs if ours and theirs else set(reference.by_id()) & set(candidate.by_id())
    if not common:
        raise CannotCompare(
            f"no module of {reference.path} is in {candidate.path}: "
            f"{_some_modules(reference)} against {_some_modules(candidate)}; are they the same "
            "model?"
        )


def _require_whole(what: str, trace: Trace) -> None:
    if trace.missing_ranks:
        raise CannotCompare(
            f"the {what} {trace.path} has no trace of rank(s) {_listed(trace.missing_ranks)} of "
            f"{trace.world_size}; every rank must write into the same folder: run it again on a "
            "file system that all ranks share"
        )
    unfinished = [rank for rank, found in sorted(trace.ranks.items()) if found.summary is None]
    if unfinished:
        raise CannotCompare(
            f"rank(s) {_listed(unfinished)} of the {what} {trace.path} did not come to the end "
            "of the last step: the run was killed, failed, or its disk was full; look at its log, "
            "then run it again (`ttrace show` reads what was recorded)"
        )
    if not trace.by_id():
        why = next(iter(_faults(trace)), "no step ran inside `with tracer.step():`")
        raise CannotCompare(f"the {what} {trace.path} holds no tensor: {why}")


def _modules(trace: Trace) -> set[str]:
    return {id_.module for id_ in trace.by_id() if id_.module}


def _some_modules(trace: Trace) -> str:
    modules = sorted(_modules(trace)) or ["only the model itself"]
    return ", ".join(modules[:3]) + (" ..." if len(modules) > 3 else "")


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(str(rank) for rank in ranks[:16]) + (" ..." if len(ranks) > 16 else "")


def _coverage(trace: Trace) -> Coverage:
    summaries = [rank.summary for rank in trace.ranks.values() if rank.summary is not None]
    modules = {module.path for rank in trace.ranks.values() for module in rank.info.modules}
    return Coverage(
        modules=len(modules),
        never_called=tuple(sorted({path for s in summaries for path in s.never_called})),
        hooks_expected=sum(s.hooks_expected for s in summaries),
        hooks_fired=sum(s.hooks_fired for s in summaries),
        unfired=tuple(sorted({id_ for s in summaries for id_ in s.unfired})),
        faults=_faults(trace),
    )


def _faults(trace: Trace) -> tuple[str, ...]:
    summaries = [rank.summary for rank in trace.ranks.values() if rank.summary is not None]
    return tuple(dict.fromkeys(fault for s in summaries for fault in s.faults))


def _trace_notes(trace: Trace) -> list[str]:
    notes = []
    for _, rank in sorted(trace.ranks.items()):
        notes += [*rank.notes, *(rank.summary.notes if rank.summary else ())]
    return list(dict.fromkeys(notes))
