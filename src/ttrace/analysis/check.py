"""The stages in order: from traces on disk to a result. The only place where they meet.

    sources -> align -> compare -> tolerance -> judge -> localize -> diagnose

`check` compares two traces as they are; `check_isolated` one whose modules all started from the
reference's values. What is measured, and by whom, is in measuring.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ttrace.analysis.accept import AcceptList, acceptances, uses
from ttrace.analysis.compare import Measured, moved_before
from ttrace.analysis.diagnose.describe import described
from ttrace.analysis.diagnose.examine import earlier, suspects, with_ranks, wrong_by_cells
from ttrace.analysis.engine import Engine
from ttrace.analysis.hyperparameters import differences, explained
from ttrace.analysis.judge import CaseFile, exhibits_of, judge
from ttrace.analysis.localize import localize, localize_isolated
from ttrace.analysis.measuring import Compared, Measuring, measuring, statistics_of
from ttrace.analysis.remarks import (
    of_alignment,
    of_covering,
    of_differences,
    of_precisions,
    of_recipes,
    of_repetition,
    of_runs,
)
from ttrace.analysis.same_step import refusal
from ttrace.analysis.sources import Source
from ttrace.analysis.tolerance import tolerances, yardsticks
from ttrace.analysis.work import ExamineJob, Progress
from ttrace.core.blame import Culprit
from ttrace.core.enclosure import Enclosure, is_enclosed
from ttrace.core.evidence import Detail
from ttrace.core.finding import Note, Topic
from ttrace.core.ids import TensorId
from ttrace.core.logical import LogicalTensor, Pair
from ttrace.core.results import Acceptance, CheckResult, TensorResult
from ttrace.trace.plan import read_modules, read_scales
from ttrace.trace.sketches import is_sketched
from ttrace.trace.store import PathOrUrl


def check(
    reference: PathOrUrl | str,
    candidate: PathOrUrl | str,
    *,
    perturbed: Sequence[PathOrUrl | str] = (),
    repeated: PathOrUrl | str | None = None,
    progress: Progress | None = None,
    engine: Engine | None = None,
    accept: AcceptList | None = None,
    sample_ranks: bool = False,
) -> CheckResult:
    """Compare two traces; perturbed references say how much rounding explains.

    `repeated`: the reference once more as it is, which tells whether it is deterministic; where it
    is not, the distance between the two counts as noise. `accept`: a TOML file of what may differ.
    `engine`: who measures; without one, processes of this machine where traces are large.
    `sample_ranks`: read no more ranks than hold every part of every tensor, and compare no replica.
    """
    entries = acceptances(accept)
    with measuring(
        reference,
        candidate,
        perturbed=perturbed,
        repeated=repeated,
        engine=engine,
        progress=progress,
        samples_ranks=sample_ranks,
    ) as work:
        return _Check(work, accept=entries).result()


def check_isolated(
    reference: PathOrUrl | str,
    candidate: PathOrUrl | str,
    *,
    plans: Path,
    perturbed: Sequence[PathOrUrl | str] = (),
    enclosures: Sequence[Enclosure] = (),
    progress: Progress | None = None,
    engine: Engine | None = None,
    accept: AcceptList | None = None,
    sample_ranks: bool = False,
) -> CheckResult:
    """Compare a run whose modules all started from the values of a reference recorded with taps.

    The perturbed references did, too. `plans` are the candidate's, which say what scales its
    gradients may have. What lies inside of `enclosures` kept its own values and is not judged.
    """
    entries, modules = acceptances(accept), read_modules(plans)
    with measuring(
        reference,
        candidate,
        perturbed=perturbed,
        engine=engine,
        progress=progress,
        isolated=read_scales(plans),
        samples_ranks=sample_ranks,
    ) as work:
        return _Check(work, accept=entries, enclosures=enclosures, modules=modules).result()


class _Check:
    """One check: what all of its steps share."""

    def __init__(
        self,
        work: Measuring,
        *,
        accept: Sequence[Acceptance],
        enclosures: Sequence[Enclosure] = (),
        modules: frozenset[str] | None = None,
    ) -> None:
        self._work = work
        self._sources = work.sources
        self._is_isolated = work.isolated is not None
        self._enclosures = enclosures
        self._modules = modules  # at whose boundaries an isolated run was given values
        self._accept = accept

    def result(self) -> CheckResult:
        sources = self._sources
        noise: dict[Source, Mapping[TensorId, Measured]] = {}
        again: list[Mapping[TensorId, Measured]] = []
        refused: list[Note] = []
        for source, compared in self._work.compared():
            if source in sources.repeated:
                again.append(compared.measured)
            elif source is not sources.candidate:
                why = self._refusal(source, compared)
                if why is None:
                    noise[source] = compared.measured
                else:
                    refused.append(why)
        case = self._case(compared, list(noise.values()), again)
        judged = judge(case, self._work.run)
        tensors = judged.tensors
        culprits = self._blame(tensors, compared)
        found = differences(sources.reference.trace, sources.candidate.trace)
        culprits, unused = explained(culprits, found, tensors)
        others = of_differences(unused)
        looked_at = suspects(tensors, culprits)
        details = self._examine(looked_at, compared)
        spans = sources.reference.spans, sources.candidate.spans
        by_cells = wrong_by_cells(spans, looked_at, compared.pairs, compared.scale.factor_of)
        return CheckResult(
            reference=str(sources.reference.trace.path),
            candidate=str(sources.candidate.trace.path),
            perturbed=tuple(str(source.trace.path) for source in noise),
            tensors=with_ranks(tensors, details, by_cells),
            culprits=described(culprits, details, sources),
            coverage=sources.candidate.coverage(sources.reference),
            notes=(*refused, *self._notes(case, again), *judged.notes, *others),
            details=details,
            runs=tuple(
                source.facts
                for source in (sources.reference, sources.candidate, *sources.perturbed)
            ),
            modules=sources.candidate.modules,
            accepted=uses(judged.open_to_acceptance, self._accept),
        )

    def _refusal(self, source: Source, compared: Compared) -> Note | None:
        """Why a perturbed reference did not make the same step, where it did not."""
        measured = statistics_of(compared.measured)
        return refusal(self._sources.reference, source, compared.pairs, measured)

    def _case(
        self,
        compared: Compared,
        noise: Sequence[Mapping[TensorId, Measured]],
        again: Sequence[Mapping[TensorId, Measured]],
    ) -> CaseFile:
        sources, isolated = self._sources, self._is_isolated
        known = yardsticks(
            compared.aligned.references(),
            [statistics_of(run) for run in noise],
            sources.reference.spans,
            repeated=[statistics_of(run) for run in again],
        )
        exhibits = exhibits_of(
            compared,
            tolerances(known, isolated=isolated),
            noise,
            is_isolated=isolated,
            is_given=self._is_given,
        )
        return CaseFile(
            sources=sources,
            compared=compared,
            exhibits=exhibits,
            noise=noise,
            is_isolated=isolated,
            accept=self._accept,
        )

    def _blame(self, tensors: Sequence[TensorResult], compared: Compared) -> tuple[Culprit, ...]:
        if not self._is_isolated:
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

    def _is_given(self, id_: TensorId) -> bool:
        """Whether it started from the reference's values, in an isolated run; in others all do."""
        is_boundary = id_.kind.is_activation or id_.kind.is_gradient_of_activation
        is_given = self._modules is None or not is_boundary or id_.module in self._modules
        return is_given and not is_enclosed(id_, self._enclosures)

    def _examine(self, wanted: Sequence[TensorResult], compared: Compared) -> tuple[Detail, ...]:
        """A closer look at the suspects."""
        reference, candidate = self._sources.reference, self._sources.candidate
        wanted = [result for result in wanted if not is_sketched(*compared.pairs[result.id])]
        jobs = [
            ExamineJob(
                reference=reference.spans.path,
                candidate=candidate.spans.path,
                result=result,
                pair=compared.pairs[result.id],
                scale=compared.scale.factor_of(result.id),
                before=_before(result.id, compared.pairs),
                sizes=candidate.sizes,
                mesh=candidate.mesh,
            )
            for result in wanted
        ]
        return tuple(self._work.run(jobs, "suspects")) if jobs else ()

    def _notes(
        self, case: CaseFile, again: Sequence[Mapping[TensorId, Measured]]
    ) -> Iterator[Note]:
        sources, compared = self._sources, case.compared
        yield from of_runs(sources.reference, sources.candidate, sources.perturbed)
        yield from of_alignment(compared.aligned)
        if self._work.cells:
            count, total = len(self._work.cells), len(compared.pairs)
            yield Note(topic=Topic.FINGERPRINTS, count=count, total=total)
        if self._work.samples_ranks:
            ranks = sources.candidate.trace.world_size
            yield from of_covering(compared.aligned.pairs(), compared.pairs, ranks)
        if compared.scale.note is not None:
            yield compared.scale.note
        yield from of_precisions(case.precisions.allowed)
        yield from of_recipes(*sources.codes)
        for measured in again:
            yield of_repetition({id_: m.statistics.equal for id_, m in measured.items()})


def _before(id_: TensorId, pairs: Mapping[TensorId, Pair]) -> LogicalTensor | None:
    """What the candidate had before the step, where that is what the tensor is an update of."""
    source = earlier(id_)
    pair = None if source is None else pairs.get(source)
    return None if pair is None else pair[1]
