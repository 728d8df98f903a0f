"""A diff as a series of runs: reference, candidate, perturbed references, isolated ones.

    FOLDER/reference                the reference
           candidate                the run to test
           perturbed-1 ...          the reference with noise: how much rounding explains; five
                                    of them where the comparison is borderline
           repeated                 the reference once more, where that is asked for
           in-blocks/               reference and perturbed ones once more, where the candidate
                                    quantises fewer samples at once (in_blocks.py)
           isolation/reference      the reference with taps
           isolation/plans/         what each rank overwrites its values with
           isolation/perturbed-1    the isolated reference with noise
           isolation/candidate      the isolated candidate
           isolation/kept           the same where some modules keep their own values inside, and
                                    whether an error inside them would show
           isolation/coarse/        the same with fewer boundaries, where one of them died
           isolation/further/       the same inside of further blocks (isolation.py)

Enters: the work of both sides. Leaves: results, and all traces in one folder. It must not know how
work is run; executors do. `diff` is the same as one call, which `ttrace.diff` names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttrace.analysis.accept import with_isolated
from ttrace.analysis.effect import enclosures_in, excused
from ttrace.analysis.judge import FAILURES, Excuse, excuse
from ttrace.analysis.work import Progress
from ttrace.core.finding import Note, Topic
from ttrace.core.results import CheckResult, Outcome, Strength, TensorResult, Verdict
from ttrace.errors import CommandFailed
from ttrace.lab.in_blocks import closest, cut_file_of
from ttrace.lab.isolation import Isolation
from ttrace.lab.launch import LocalExecutor, prepare_folder
from ttrace.lab.options import Capture
from ttrace.lab.run import Executor, Work
from ttrace.lab.series import Noisy, Series, devices_differ, stands_without
from ttrace.trace.store import local_path

_OF_BOTH = (Topic.COARSER, Topic.OTHER_RECIPE)  # what isolated runs tell of a comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(Series):
    """The runs that tell whether two sides are equivalent, and if not, why."""

    def diff(self) -> CheckResult:
        """Compare; isolated runs say why that fails, and decide what it cannot."""
        result = self.compare()
        if self.capture is Capture.FINGERPRINT or not _is_open(result):
            return result
        try:
            isolation = self.isolate(result)
        except CommandFailed as error:
            return stands_without(result, error)
        return localized(result, isolation, strict=self.strict)

    def compare(self) -> CheckResult:
        """Run both sides and the perturbed references, and compare what they recorded."""
        repeats = int(self.repeat_reference)
        after_it = self.perturbed_runs + repeats
        how: dict[str, Any] = {"payload": self.capture.payload}
        reference = self.run("reference", self.reference, then=1 + after_it, **how)
        candidate = self.run("candidate", self.candidate, then=after_it, **how)
        noisy = Noisy("perturbed", other_kernels=devices_differ(reference, candidate), recorded=how)
        perturbed, lost = self._perturbed_or_why(noisy, then=repeats)
        repeated = self.run("repeated", self.reference, **how) if repeats else None
        result = self.checked(reference, candidate, perturbed, noisy, repeated)
        if lost is not None:
            return stands_without(result, lost)
        return closest(self, result, noisy)

    def _perturbed_or_why(
        self, noisy: Noisy, *, then: int
    ) -> tuple[list[Path], CommandFailed | None]:
        """None, where one of them did not end well: much can be said without them."""
        try:
            return self.perturbed(noisy, then=then), None
        except CommandFailed as error:
            return [], error

    def isolate(
        self, plain: CheckResult | None = None, *, candidate: Path | None = None
    ) -> CheckResult:
        """Run the candidate with every module's input replaced by the reference's.

        `plain` is the comparison, where it has been made already: what it finds right tells what
        may be harmless. `candidate` is a plain trace of it, without one.
        """
        if plain is not None:
            candidate = Path(plain.candidate)
        if candidate is None:
            candidate = self.run("candidate", self.candidate, then=self.perturbed_runs + 2)
        runs = replace(self, blocks=None if plain is None else cut_file_of(plain))
        return Isolation(runs, candidate, plain).result()


def _is_open(result: CheckResult) -> bool:
    """Whether isolated runs have something to say.

    Where modules quantise, rounding flips codes, and flips grow from layer to layer until a layer
    that was not quantised at all lies within what they explain: there a pass says little.
    """
    if result.outcome is Outcome.EQUIVALENT:
        quantises = any(note.topic is Topic.CODES_FLIP for note in result.notes)
        return result.strength is Strength.BORDERLINE or quantises
    return result.outcome is Outcome.NOT_EQUIVALENT


def localized(result: CheckResult, isolation: CheckResult, *, strict: bool = False) -> CheckResult:
    """A comparison with the root causes that an isolated run found.

    Where it finds none, what is borderline and right by itself is rounding that has grown. What it
    found to be harmless inside a module is so here, too.
    """
    of_both = [note for note in isolation.notes if note.topic in _OF_BOTH]
    result = excused(result, enclosures_in(isolation))
    told = [note for note in result.notes if note.topic is not Topic.CODES_FLIP]  # which was done
    result = replace(result, notes=(*told, *of_both))
    if isolation.culprits:
        return _with_culprits_of(result, isolation)
    if (follows := with_isolated(result, isolation)) is not None:
        return follows
    # A borderline comparison, where the isolated run passes
    #     w1 and w2, and both had failed:           both are borderline, and nothing is to blame
    #     w1 alone, of w1 and w2 that had failed:   both fail, and no root cause is known
    passed = {r.id for r in isolation.tensors if r.verdict is Verdict.PASS}
    rounded = [r for r in result.failures if r.id in passed]
    is_borderline = result.strength is Strength.BORDERLINE and not strict
    if is_borderline and len(rounded) == len(result.failures):
        return _rounded(replace(result, isolation=isolation), rounded)
    if not result.failures:
        return replace(result, isolation=isolation, culprits=())
    note = Note(topic=Topic.NO_ROOT_CAUSE)
    return replace(result, isolation=isolation, notes=(*result.notes, note))


def _with_culprits_of(result: CheckResult, isolation: CheckResult) -> CheckResult:
    """The comparison, blaming what its isolated run blames."""
    # Which numbers explain nothing is known where the culprits are.
    of_result = [note for note in result.notes if note.topic is not Topic.OTHER_NUMBER]
    unused = [note for note in isolation.notes if note.topic is Topic.OTHER_NUMBER]
    return replace(
        result, culprits=isolation.culprits, isolation=isolation, notes=(*of_result, *unused)
    )


def _rounded(result: CheckResult, rounded: Sequence[TensorResult]) -> CheckResult:
    ids = {tensor.id for tensor in rounded}
    note = Note(
        topic=Topic.RIGHT_BY_ITSELF,
        count=len(ids),
        first=rounded[0].id if rounded else None,
        factor=result.largest_ratio,
    )
    return replace(
        result,
        culprits=(),
        notes=(*result.notes, note) if rounded else result.notes,
        tensors=excuse(
            result.tensors,
            (Excuse(id=id_, verdict=Verdict.BORDERLINE, over=FAILURES) for id_ in ids),
        )[0],
    )


def diff(
    reference: Work,
    candidate: Work,
    *,
    out: Path | str,
    isolate: bool = True,
    execute: Executor | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> CheckResult:
    """Run both sides with tracing on, compare them, and name the root cause of a failure.

    A side is a shell command, a list of words, or a `Function` on several ranks; its script calls
    `ttrace.attach`. Traces stay in the folder `out`, empty or not there yet. `isolate=False` saves
    runs, `execute` runs things in another way, and `options` are those of `ComparisonOptions`:
    `steps`, `skip` and `every` say which steps are recorded, `strict` fails what is borderline, or
    differs in a module without an effect outside, `accept` lists what may differ, and `capture` is
    "full", "fingerprint" or "auto" (values where it isolates).
    """
    experiment = Experiment(
        reference=reference,
        candidate=candidate,
        folder=prepare_folder(local_path(out)),
        execute=execute or LocalExecutor(),
        progress=progress,
        **options,
    )
    return experiment.diff() if isolate else experiment.compare()
