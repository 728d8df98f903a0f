"""The stages in order: from traces on disk to a result. The only place where they meet.

    sources -> align -> tolerance -> compare -> localize -> diagnose

`check` compares two traces as they are; `check_isolated` one whose modules all started from the
reference's values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ttrace.analysis.accept import AcceptList, acceptances, accepted, uses
from ttrace.analysis.align import Aligned, Aligner
from ttrace.analysis.compare import Allowed, LossScale, Measured, Unit, judge, moved_before
from ttrace.analysis.diagnose.describe import described
from ttrace.analysis.diagnose.examine import Examiner, earlier, suspects, with_ranks
from ttrace.analysis.elsewhere import reduced_elsewhere
from ttrace.analysis.engine import Engine, Serial
from ttrace.analysis.hyperparameters import differences, explained
from ttrace.analysis.localize import localize, localize_isolated
from ttrace.analysis.remarks import of_alignment, of_differences, of_repetition, of_runs
from ttrace.analysis.same_step import refusal
from ttrace.analysis.scaling import loss_scale
from ttrace.analysis.sources import Source, Sources, comparable
from ttrace.analysis.tolerance import allowed_moves, tolerances, yardsticks
from ttrace.analysis.verify import verify
from ttrace.core.acceptance import Acceptance
from ttrace.core.alignment import Pair
from ttrace.core.blame import Culprit
from ttrace.core.enclosure import Enclosure, is_enclosed
from ttrace.core.evidence import Detail
from ttrace.core.finding import Note, Topic
from ttrace.core.ids import TensorId
from ttrace.core.logical import as_terms
from ttrace.core.results import CheckResult, TensorResult
from ttrace.core.scale import Scales
from ttrace.core.statistics import Statistics
from ttrace.trace.plan import read_modules, read_scales
from ttrace.trace.sketches import InCells, cells_of, is_sketched

Progress = Callable[[str, int, int], None]  # what, done, of how many


def check(
    reference: Path | str,
    candidate: Path | str,
    *,
    perturbed: Sequence[Path | str] = (),
    repeated: Path | str | None = None,
    progress: Progress | None = None,
    engine: Engine | None = None,
    accept: AcceptList | None = None,
) -> CheckResult:
    """Compare two traces; perturbed references say how much rounding explains.

    `repeated`: the reference once more as it is, which tells whether it is deterministic; where it
    is not, the distance between the two counts as noise. `accept`: a TOML file of what may differ.
    """
    entries = acceptances(accept)
    with comparable(reference, candidate, perturbed, repeated) as sources:
        return _Check(sources, progress, engine, accept=entries).result(None)


def check_isolated(
    reference: Path | str,
    candidate: Path | str,
    *,
    plans: Path,
    perturbed: Sequence[Path | str] = (),
    enclosures: Sequence[Enclosure] = (),
    progress: Progress | None = None,
    engine: Engine | None = None,
    accept: AcceptList | None = None,
) -> CheckResult:
    """Compare a run whose modules all started from the values of a reference recorded with taps.

    The perturbed references did, too. `plans` are the candidate's, which say what scales its
    gradients may have. What lies inside of `enclosures` kept its own values and is not judged.
    """
    entries, modules = acceptances(accept), read_modules(plans)
    with comparable(reference, candidate, perturbed, None) as sources:
        found = _Check(
            sources, progress, engine, accept=entries, enclosures=enclosures, modules=modules
        )
        return found.result(read_scales(plans))


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
        sources: Sources,
        progress: Progress | None,
        engine: Engine | None,
        *,
        accept: Sequence[Acceptance],
        enclosures: Sequence[Enclosure] = (),
        modules: frozenset[str] | None = None,
    ) -> None:
        self._sources = sources
        self._enclosures = enclosures
        self._modules = modules  # at whose boundaries an isolated run was given values
        self._report = progress or (lambda *_: None)
        self._engine = engine or Serial()
        self._accept = accept
        self._aligner = Aligner(sources.reference)
        self._cells: Mapping[TensorId, InCells] = {}  # of the fingerprints of both runs

    def result(self, isolated: Scales | None) -> CheckResult:
        sources = self._sources
        aligned = self._aligner.align(sources.candidate)  # first: its cells count for all
        self._cells = cells_of(aligned.pairs())
        noise, refused = self._noise()
        align = self._aligner.align
        again = [self._compare(s, align(s), s.role).measured for s in sources.repeated]
        compared = self._compare(sources.candidate, aligned, "candidate", isolated)
        judged = self._judge(compared, list(noise.values()), again, isolated)
        elsewhere: tuple[Note, ...] = ()
        if sources.candidate.updated_by_hand:
            judged, elsewhere = reduced_elsewhere(judged, compared.pairs, sources.reference)
        tensors = accepted(judged, self._accept)
        culprits = self._blame(tensors, compared, isolated)
        found = differences(sources.reference.trace, sources.candidate.trace)
        culprits, unused = explained(culprits, found, tensors)
        details = self._examine(suspects(tensors, culprits), compared)
        return CheckResult(
            reference=str(sources.reference.trace.path),
            candidate=str(sources.candidate.trace.path),
            perturbed=tuple(str(source.trace.path) for source in noise),
            tensors=with_ranks(tensors, details),
            culprits=described(culprits, details, sources.candidate),
            coverage=sources.candidate.coverage(sources.reference),
            notes=(*refused, *self._notes(compared, again), *elsewhere, *of_differences(unused)),
            details=details,
            runs=tuple(
                source.facts
                for source in (sources.reference, sources.candidate, *sources.perturbed)
            ),
            modules=sources.candidate.modules,
            accepted=uses(judged, self._accept),
        )

    def _noise(self) -> tuple[dict[Source, Mapping[TensorId, Measured]], list[Note]]:
        """Perturbed references that made the same step, measured; and why others were left out."""
        found, refused = {}, []
        for number, source in enumerate(self._sources.perturbed, start=1):
            what = f"noise {number} of {len(self._sources.perturbed)}"
            run = self._compare(source, self._aligner.align(source), what)
            measured = _statistics(run.measured)
            why = refusal(self._sources.reference, source, run.pairs, measured)
            if why is None:
                found[source] = run.measured
            else:
                refused.append(why)
        return found, refused

    def _compare(
        self, candidate: Source, aligned: Aligned, what: str, isolated: Scales | None = None
    ) -> _Compared:
        """Measure every pair of a run that is aligned with the reference."""
        reference = self._sources.reference
        pairs = aligned.pairs()
        scale = loss_scale(reference, candidate, aligned, isolated)
        units = [
            Unit(
                id=id_,
                reference=expected,
                candidate=found,
                scale=scale.factor_of(id_),
                may_be_terms=scale.may_be_terms(id_, expected),
                cells=self._cells.get(id_),
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
        verify(aligned, reference, candidate)
        return _Compared(aligned=aligned, pairs=pairs, measured=measured, scale=scale)

    def _judge(
        self,
        compared: _Compared,
        noise: Sequence[Mapping[TensorId, Measured]],
        again: Sequence[Mapping[TensorId, Measured]],
        isolated: Scales | None,
    ) -> tuple[TensorResult, ...]:
        """Every verdict."""
        sources, aligned = self._sources, compared.aligned
        known = yardsticks(
            aligned.references(),
            [_statistics(run) for run in noise],
            sources.reference.spans,
            repeated=[_statistics(run) for run in again],
        )
        allowed = Allowed(
            tolerances=tolerances(known, isolated=isolated is not None),
            moves=allowed_moves([found.moved for run in noise for found in run.values()]),
            faults={s.role: s.faults for s in (sources.reference, sources.candidate)},
        )
        moved = {} if isolated is None else compared.moved()
        return tuple(
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

    def _blame(
        self, tensors: Sequence[TensorResult], compared: _Compared, isolated: Scales | None
    ) -> tuple[Culprit, ...]:
        if isolated is None:
            return localize(tensors, compared.aligned.consumers)
        moved = compared.moved()
        unfired = frozenset(self._sources.candidate.coverage(self._sources.reference).unfired)
        displaced = {result.id for result in tensors if moved_before(result.id, moved)}
        return localize_isolated(
            tensors,
            unfired=unfired,
            displaced=displaced,
            modules=self._modules,
            by_hand=self._sources.candidate.updated_by_hand,
        )

    def _is_isolated(self, id_: TensorId) -> bool:
        """Whether it started from the reference's values, in an isolated run; in others all do."""
        is_boundary = id_.kind.is_activation or id_.kind.is_gradient_of_activation
        is_given = self._modules is None or not is_boundary or id_.module in self._modules
        return is_given and not is_enclosed(id_, self._enclosures)

    def _examine(self, wanted: Sequence[TensorResult], compared: _Compared) -> tuple[Detail, ...]:
        """A closer look at the suspects."""
        candidate = self._sources.candidate
        wanted = [result for result in wanted if not is_sketched(*compared.pairs[result.id])]
        examiner = Examiner(self._sources.reference.spans, candidate.spans)
        sizes, mesh = candidate.sizes, candidate.mesh
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
                    sizes=sizes,
                    mesh=mesh,
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
        yield from of_alignment(compared.aligned)
        if self._cells:
            count, total = len(self._cells), len(compared.pairs)
            yield Note(topic=Topic.FINGERPRINTS, count=count, total=total)
        if compared.scale.note is not None:
            yield compared.scale.note
        for measured in again:
            yield of_repetition({id_: m.statistics.equal for id_, m in measured.items()})


def _statistics(measured: Mapping[TensorId, Measured]) -> dict[TensorId, Statistics]:
    return {id_: found.statistics for id_, found in measured.items() if found.cells_fit}
