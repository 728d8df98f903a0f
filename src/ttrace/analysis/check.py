"""The stages in order: from traces on disk to a result. The only place where they meet.

    sources -> align -> tolerance -> compare -> localize -> diagnose

`check` compares two traces as they are; `check_isolated` one whose modules all started from the
reference's values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ttrace.analysis.align import Aligned, Aligner
from ttrace.analysis.compare import (
    Allowed,
    LossScale,
    Measured,
    Unit,
    judge,
    moved_before,
)
from ttrace.analysis.diagnose.examine import (
    Examiner,
    earlier,
    suspects,
    with_diagnoses,
    with_ranks,
)
from ttrace.analysis.engine import Engine, Serial
from ttrace.analysis.hyperparameters import differences, explained
from ttrace.analysis.localize import localize, localize_isolated
from ttrace.analysis.remarks import of_differences, of_repetition, of_runs
from ttrace.analysis.scaling import loss_scale
from ttrace.analysis.sources import Source, opened, require_comparable
from ttrace.analysis.tolerance import allowed_moves, tolerances, yardsticks
from ttrace.core.alignment import Pair
from ttrace.core.blame import Culprit
from ttrace.core.evidence import Detail
from ttrace.core.finding import Note, Topic
from ttrace.core.ids import TensorId
from ttrace.core.logical import as_terms
from ttrace.core.results import CheckResult, TensorResult
from ttrace.core.scale import Scales
from ttrace.core.statistics import Statistics
from ttrace.trace.blocks import BlockReader
from ttrace.trace.plan import read_modules, read_scales

Progress = Callable[[str, int, int], None]  # what, done, of how many


def check(
    reference: Path | str,
    candidate: Path | str,
    *,
    perturbed: Sequence[Path | str] = (),
    repeated: Path | str | None = None,
    progress: Progress | None = None,
    engine: Engine | None = None,
) -> CheckResult:
    """Compare two traces; perturbed references say how much rounding explains.

    `repeated`: the reference once more as it is, which tells whether it is deterministic; where it
    is not, the distance between the two counts as noise.
    """
    with _opened(reference, candidate, perturbed, repeated) as sources:
        return _Check(sources, progress, engine).result(None)


def check_isolated(
    reference: Path | str,
    candidate: Path | str,
    *,
    plans: Path,
    perturbed: Sequence[Path | str] = (),
    progress: Progress | None = None,
    engine: Engine | None = None,
) -> CheckResult:
    """Compare a run whose modules all started from the values of a reference recorded with taps.

    The perturbed references did, too. `plans` are the candidate's, which say what scales its
    gradients may have.
    """
    with _opened(reference, candidate, perturbed, None) as sources:
        modules = read_modules(plans)
        return _Check(sources, progress, engine, modules).result(read_scales(plans))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    reference: Source
    candidate: Source
    perturbed: Sequence[Source]
    repeated: Sequence[Source]


@contextmanager
def _opened(
    reference: Path | str,
    candidate: Path | str,
    perturbed: Sequence[Path | str],
    repeated: Path | str | None,
) -> Iterator[_Sources]:
    again = [] if repeated is None else [("repeated reference", repeated)]
    noisy = [("perturbed reference", path) for path in perturbed]
    with opened(("reference", reference), ("candidate", candidate), *noisy, *again) as found:
        sources = _Sources(
            reference=found[0],
            candidate=found[1],
            perturbed=found[2 : 2 + len(noisy)],
            repeated=found[2 + len(noisy) :],
        )
        require_comparable(
            sources.reference, sources.candidate, sources.perturbed, sources.repeated
        )
        yield sources


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """Two traces measured against each other, and the pairs as they were measured."""

    aligned: Aligned
    pairs: Mapping[TensorId, Pair]
    measured: Mapping[TensorId, Measured]
    scale: LossScale

    def moved(self) -> dict[TensorId, int]:
        return {id_: found.moved for id_, found in self.measured.items() if found.moved}


class _Check:
    """One check: what all of its steps share."""

    def __init__(
        self,
        sources: _Sources,
        progress: Progress | None,
        engine: Engine | None,
        modules: frozenset[str] | None = None,
    ) -> None:
        self._sources = sources
        self._modules = modules  # at whose boundaries an isolated run was given values
        self._report = progress or (lambda *_: None)
        self._engine = engine or Serial()
        self._aligner = Aligner(sources.reference)

    def result(self, isolated: Scales | None) -> CheckResult:
        sources = self._sources
        noise = [
            self._compare(source, f"noise {number} of {len(sources.perturbed)}").measured
            for number, source in enumerate(sources.perturbed, start=1)
        ]
        again = [self._compare(s, s.role).measured for s in sources.repeated]
        compared = self._compare(sources.candidate, "candidate", isolated)
        tensors, culprits = self._judge(compared, noise, again, isolated)
        found = differences(sources.reference.trace, sources.candidate.trace)
        culprits, unused = explained(culprits, found, tensors)
        details = self._examine(suspects(tensors, culprits), compared)
        return CheckResult(
            reference=str(sources.reference.trace.path),
            candidate=str(sources.candidate.trace.path),
            perturbed=tuple(str(source.trace.path) for source in sources.perturbed),
            tensors=with_ranks(tensors, details),
            culprits=with_diagnoses(culprits, details),
            coverage=sources.candidate.coverage,
            notes=(*self._notes(compared, again), *of_differences(unused)),
            details=details,
            runs=tuple(
                source.facts
                for source in (sources.reference, sources.candidate, *sources.perturbed)
            ),
            modules=sources.candidate.modules,
        )

    def _compare(self, candidate: Source, what: str, isolated: Scales | None = None) -> _Compared:
        """Align one run with the reference and measure every pair."""
        reference = self._sources.reference
        aligned = self._aligner.align(candidate)
        pairs = aligned.pairs()
        scale = loss_scale(reference, candidate, aligned, isolated)
        units = [
            Unit(
                id=id_,
                reference=expected,
                candidate=found,
                scale=scale.factor_of(id_),
                may_be_terms=id_.kind.is_unreduced,
            )
            for id_, (expected, found) in pairs.items()
        ]
        measured: dict[TensorId, Measured] = {}
        done = self._engine.measure(reference.spans, candidate.spans, units)
        for number, (unit, found) in enumerate(zip(units, done, strict=True)):
            self._report(what, number, len(units))
            measured[unit.id] = found
            if found.as_terms and (terms := as_terms(unit.candidate)) is not None:
                pairs[unit.id] = (unit.reference, terms)
        self._report(what, len(units), len(units))
        return _Compared(aligned=aligned, pairs=pairs, measured=measured, scale=scale)

    def _judge(
        self,
        compared: _Compared,
        noise: Sequence[Mapping[TensorId, Measured]],
        again: Sequence[Mapping[TensorId, Measured]],
        isolated: Scales | None,
    ) -> tuple[tuple[TensorResult, ...], tuple[Culprit, ...]]:
        """Every verdict, and who is to blame."""
        sources, aligned = self._sources, compared.aligned
        known = yardsticks(
            aligned.references(),
            [_statistics(run) for run in noise],
            BlockReader(sources.reference.spans),
            repeated=[_statistics(run) for run in again],
        )
        allowed = Allowed(
            tolerances=tolerances(known, isolated=isolated is not None),
            moves=allowed_moves([found.moved for run in noise for found in run.values()]),
            faults={s.role: s.faults for s in (sources.reference, sources.candidate)},
        )
        moved = {} if isolated is None else compared.moved()
        tensors = tuple(
            judge(
                alignment,
                compared.measured.get(alignment.id),
                allowed,
                order=order,
                excused=moved_before(alignment.id, moved),
            )
            for order, alignment in enumerate(aligned.tensors)
            if alignment.is_judged and self._is_isolated(alignment.id)
        )
        if isolated is None:
            return tensors, localize(tensors, aligned.consumers)
        unfired = frozenset(sources.candidate.coverage.unfired)
        displaced = {result.id for result in tensors if moved_before(result.id, moved)}
        return tensors, localize_isolated(
            tensors, unfired=unfired, displaced=displaced, modules=self._modules
        )

    def _is_isolated(self, id_: TensorId) -> bool:
        is_boundary = id_.kind.is_activation or id_.kind.is_gradient_of_activation
        return self._modules is None or not is_boundary or id_.module in self._modules

    def _examine(self, wanted: Sequence[TensorResult], compared: _Compared) -> tuple[Detail, ...]:
        """A closer look at the suspects."""
        candidate = self._sources.candidate
        examiner = Examiner(self._sources.reference.spans, candidate.spans)
        details = []
        for number, result in enumerate(wanted):
            self._report("suspects", number, len(wanted))
            source = earlier(result.id)
            before = None if source is None else compared.pairs.get(source)
            details.append(
                examiner.examine(
                    result,
                    *compared.pairs[result.id],
                    compared.scale.factor_of(result.id),
                    before=None if before is None else before[1],
                    sizes=candidate.sizes,
                )
            )
        if wanted:
            self._report("suspects", len(wanted), len(wanted))
        return tuple(details)

    def _notes(
        self, compared: _Compared, again: Sequence[Mapping[TensorId, Measured]]
    ) -> Iterator[Note]:
        sources = self._sources
        yield from of_runs(sources.reference, sources.candidate, sources.perturbed)
        for text in (*compared.aligned.candidate_batch.notes, *compared.aligned.notes):
            yield Note(topic=Topic.ALIGNMENT, text=text)
        inferred = [t.id for t in compared.aligned.tensors if t.candidate and t.candidate.notes]
        if inferred:
            yield Note(topic=Topic.INFERRED_LAYOUTS, count=len(inferred), first=inferred[0])
        if compared.scale.note is not None:
            yield compared.scale.note
        for measured in again:
            yield of_repetition({id_: m.statistics.equal for id_, m in measured.items()})


def _statistics(measured: Mapping[TensorId, Measured]) -> dict[TensorId, Statistics]:
    return {id_: found.statistics for id_, found in measured.items()}
