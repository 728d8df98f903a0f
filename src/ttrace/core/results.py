"""Results: what a check says, and of how much of a training step. Plain values, one machine form.

    Covered(part=StepPart.FORWARD, judged=120, expected=120)    whole
    Covered(part=StepPart.UPDATE, judged=0, expected=31)        of 31 gradients no update was seen
    Lost.RECORDING                                              something could not be recorded
    Acceptance(id="step*/drop:*", reason="each rank draws its own mask", bound=None)
    Fix(gone=(Blame.of("layers.1", ...),), new=(), passing=7)   between two results

A part that neither run did, such as the update of a step that makes none, narrows a verdict. What
was expected and lost leaves it open. An acceptance is a difference that a team has decided to live
with: analysis/accept.py reads files of them and says what they do to verdicts.

The two methods that make something for people import the report when they are called: a result is
where a user looks for them, and this file needs no formatter to be read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ttrace.core.blame import Blame, Culprit
from ttrace.core.door import from_dict, shown, to_dict
from ttrace.core.evidence import Detail, RunFacts
from ttrace.core.finding import Finding, Note, Specifics, Topic
from ttrace.core.ids import MASTER, Kind, TensorId
from ttrace.core.limits import Label
from ttrace.core.record import ModuleInfo
from ttrace.core.statistics import Judgement, Statistics, Tolerance
from ttrace.errors import TTraceError, UsageError
from ttrace.text import inert


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """A pattern of tensor ids, why they may differ, and by how many times their tolerance."""

    id: Label
    reason: Label
    bound: float | None = None  # error over tolerance; none: whatever it is

    def __post_init__(self) -> None:
        if not self.id or not self.reason:
            raise UsageError("an entry has an id and a reason: say why it may differ")
        if self.bound is not None and not 0 < self.bound < math.inf:
            raise UsageError(f"the bound {self.bound} must be above 0 and finite")

    def matches(self, id_: TensorId) -> bool:
        """By the text of an id, as every report shows it; which is a pattern of itself."""
        text = str(id_)
        return text == self.id or fnmatchcase(text, self.id)

    def allows(self, severity: float) -> bool:
        return self.bound is None or severity <= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedTensors:
    """What one entry did in a comparison: how many it accepted, and how many beyond its bound."""

    entry: Acceptance
    count: int = 0
    beyond: int = 0


class StepPart(StrEnum):
    """What a training step is made of, in its order."""

    FORWARD = "forward"
    BACKWARD = "backward"
    REDUCTION = "reduction"  # of the parameters' gradients, over microbatches and ranks
    UPDATE = "update"

    @classmethod
    def shown_by(cls, kind: Kind) -> StepPart | None:
        """The part of which a tensor of this kind is a result; none of what a step starts from."""
        return _SHOWN_BY.get(kind)


_SHOWN_BY = {
    Kind.OUTPUT: StepPart.FORWARD,
    Kind.LOSS: StepPart.FORWARD,
    Kind.GRAD_OUTPUT: StepPart.BACKWARD,
    Kind.GRAD_INPUT: StepPart.BACKWARD,
    Kind.GRAD: StepPart.BACKWARD,
    Kind.REDUCED_GRAD: StepPart.REDUCTION,
    Kind.MAIN_GRAD: StepPart.REDUCTION,
    Kind.PARAM_AFTER: StepPart.UPDATE,
}


class Lost(StrEnum):
    """Why a comparison in which nothing fails decides nothing."""

    STEP = "step"  # no tensor that a step makes was compared
    REFERENCE = "reference"  # the candidate does a part that the reference does not
    RECORDING = "recording"  # something could not be recorded
    PROCESS = "process"  # something that was given to `attach` could not be traced at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """How much of a part was judged: tensors of a pass, parameters of what happens to those."""

    part: StepPart
    judged: int
    expected: int

    @property
    def is_whole(self) -> bool:
        return 0 < self.expected <= self.judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What was seen and what was not."""

    modules: int = 0
    never_called: tuple[str, ...] = ()
    hooks_expected: int = 0
    hooks_fired: int = 0
    unfired: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    reference_faults: tuple[str, ...] = ()
    candidate_only: tuple[str, ...] = ()  # modules of both runs that the reference never called


def covered(judged: Iterable[TensorId]) -> tuple[Covered, ...]:
    """How much of every part these tensors are.

    Every parameter with a gradient is expected to have a reduced one, and an update.
    """
    found: dict[Kind, set[TensorId]] = {}
    for id_ in judged:
        found.setdefault(id_.kind, set()).add(id_)
    local, main = _parameters(found.get(Kind.GRAD, ())), _parameters(found.get(Kind.MAIN_GRAD, ()))
    updated = _parameters(found.get(Kind.PARAM_AFTER, ()))
    graded = local | main
    passes = {
        part: sum(len(ids) for kind, ids in found.items() if StepPart.shown_by(kind) is part)
        for part in (StepPart.FORWARD, StepPart.BACKWARD)
    }
    return (
        *(Covered(part=part, judged=count, expected=count) for part, count in passes.items()),
        Covered(part=StepPart.REDUCTION, judged=len(main), expected=len(graded)),
        Covered(
            part=StepPart.UPDATE,
            judged=len(updated & graded) if graded else len(updated),
            expected=len(graded or updated),
        ),
    )


def _parameters(ids: Iterable[TensorId]) -> set[tuple[int, str, str]]:
    return {(id_.step, id_.module, id_.slot.removesuffix(MASTER)) for id_ in ids}


SCHEMA_VERSION = 5

# Error over tolerance. Chosen: correct programs outside of all calibration were below 5 when they
# raised an alarm, and mistakes mostly above 100.
NEAR, STRONG, CERTAIN = 2 / 3, 5.0, 100.0


class Verdict(StrEnum):
    """What is said of one id; every id gets one."""

    PASS = "pass"
    MISMATCH = "mismatch"  # further from the reference than rounding explains
    BORDERLINE = "borderline"  # a little further, and right by itself in an isolated run
    HARMLESS = "harmless"  # other inside a module from which everything leaves as it should
    CONFLICT = "conflict"  # replicas disagree
    INCOMPLETE = "incomplete"  # shards are missing
    MISSING = "missing"  # in the reference only
    EXTRA = "extra"  # in the candidate only
    NONFINITE = "nonfinite"  # NaN or Inf where the reference has none
    SHAPE = "shape"  # the pieces do not fit the logical shape
    UNDECIDED = "undecided"  # no yardstick, or the reference itself cannot be trusted here
    ACCEPTED = "accepted"  # a failure that the accept list allows, or that follows from one

    @property
    def is_failure(self) -> bool:
        return self not in _NO_FAILURES


_NO_FAILURES = frozenset(
    {
        *(Verdict.PASS, Verdict.BORDERLINE, Verdict.HARMLESS, Verdict.ACCEPTED),
        *(Verdict.EXTRA, Verdict.UNDECIDED),
    }
)


class Outcome(StrEnum):
    """What is said of the whole comparison."""

    EQUIVALENT = "equivalent"
    NOT_EQUIVALENT = "not equivalent"
    UNDECIDED = "undecided"

    @property
    def exit_code(self) -> int:
        return list(Outcome).index(self)


class Strength(StrEnum):
    """How strong the evidence of a result is, by how far it lies from what is allowed."""

    CLEAR = "clear"  # nothing comes near a limit
    BORDERLINE = "borderline"  # near a limit, on either side
    STRONG = "strong"
    CERTAIN = "certain"  # or of a kind that rounding cannot make

    @classmethod
    def of(cls, ratio: float) -> Strength:
        """By error over tolerance; infinite where a failure has none."""
        return list(cls)[sum(ratio > limit for limit in (NEAR, STRONG, CERTAIN))]

    @property
    def rank(self) -> int:
        """0 for the strongest."""
        return len(Strength) - 1 - list(Strength).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorResult:
    """The verdict on one id and its evidence."""

    id: TensorId
    verdict: Verdict
    order: int
    shape: tuple[int, ...] = ()
    dtype: str = ""
    statistics: Statistics | None = None
    tolerance: Tolerance | None = None
    judgements: tuple[Judgement, ...] = ()  # one for every statistic that was judged
    ratio: float | None = None  # error over tolerance, the largest of all; above 1 fails
    error_eps: float | None = None  # relative error in machine epsilons of the dtype
    ranks: tuple[int, ...] = ()  # where the evidence lies, when it is not everywhere
    finding: Finding | None = None
    specifics: Specifics | None = None

    @property
    def worst(self) -> Judgement | None:
        """The statistic that decides."""
        return max(self.judgements, key=lambda judgement: judgement.ratio, default=None)

    @property
    def severity(self) -> float:
        """Error over tolerance; infinite for a failure that has none, 0 where nothing is judged."""
        counts = self.verdict in (Verdict.PASS, Verdict.BORDERLINE, Verdict.MISMATCH)
        if counts and self.ratio is not None:
            return self.ratio
        return math.inf if self.verdict.is_failure else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Its fields, and what can be read from them without knowing how an id is written."""
        return to_dict(self) | {
            "module": self.id.module,
            "kind": self.id.kind.value,
            "slot": self.id.slot,
            "statistic": None if self.worst is None else self.worst.reading.statistic.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Everything a check found out."""

    reference: str
    candidate: str
    perturbed: tuple[str, ...]
    tensors: tuple[TensorResult, ...]
    culprits: tuple[Culprit, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    notes: tuple[Note, ...] = ()
    isolation: CheckResult | None = None  # of the isolated run, when there was one
    details: tuple[Detail, ...] = ()  # of suspects only
    runs: tuple[RunFacts, ...] = ()  # reference, candidate, then the perturbed references
    modules: tuple[ModuleInfo, ...] = ()  # of the candidate
    accepted: tuple[AcceptedTensors, ...] = ()  # every entry of the accept list
    command: str = ""  # that made it, where one did

    def __str__(self) -> str:
        """The headline of the report."""
        from ttrace.report.overall import headline

        return inert(headline(self))

    def __getitem__(self, id_: TensorId | str) -> TensorResult:
        """What is said of one tensor."""
        name = str(id_)
        known = {str(result.id): result for result in self.tensors}
        if name in known:
            return known[name]
        near = get_close_matches(name, known, n=3, cutoff=0.0)
        raise KeyError(f"the result has no tensor {name}; the nearest are {', '.join(near)}")

    @property
    def blamed_in(self) -> CheckResult:
        """The comparison in which the culprits were found, which has their evidence."""
        isolated = self.isolation
        return isolated if isolated is not None and isolated.culprits else self

    @property
    def failures(self) -> tuple[TensorResult, ...]:
        return tuple(result for result in self.tensors if result.verdict.is_failure)

    @property
    def undecided(self) -> tuple[TensorResult, ...]:
        return tuple(r for r in self.tensors if r.verdict is Verdict.UNDECIDED)

    @property
    def compared(self) -> int:
        return sum(result.statistics is not None for result in self.tensors)

    @property
    def covered(self) -> tuple[Covered, ...]:
        """How much of each part of a step was judged."""
        return covered(
            r.id
            for r in self.tensors
            if r.statistics is not None and r.verdict is not Verdict.UNDECIDED
        )

    @property
    def lost(self) -> tuple[Lost, ...]:
        """What should have been seen and was not: no verdict can do without it."""
        seen = {found.part for found in self.covered if found.judged}
        extra = {StepPart.shown_by(r.id.kind) for r in self.tensors if r.verdict is Verdict.EXTRA}
        found = {
            Lost.STEP: not seen,
            Lost.REFERENCE: bool(extra - seen - {None}),
            Lost.RECORDING: bool(self.coverage.faults or self.coverage.reference_faults),
            Lost.PROCESS: any(note.topic is Topic.NOT_ATTACHED for note in self.notes),
        }
        return tuple(lost for lost, is_so in found.items() if is_so)

    @property
    def largest_ratio(self) -> float:
        """Error over tolerance of the worst tensor; infinite where a failure has none."""
        return max((result.severity for result in self.tensors), default=0.0)

    @property
    def strength(self) -> Strength:
        """Of the comparison in which the culprits were found, where there are any."""
        return Strength.of(self.blamed_in.largest_ratio)

    def nearest(self) -> dict[Kind, TensorResult]:
        """Of every kind the tensor that comes nearest to its tolerance, or exceeds it most."""
        found: dict[Kind, TensorResult] = {}
        for result in self.tensors:
            best = found.get(result.id.kind)
            if result.verdict in (Verdict.HARMLESS, Verdict.ACCEPTED):
                continue
            if result.ratio is not None and (best is None or result.ratio > (best.ratio or 0.0)):
                found[result.id.kind] = result
        return found

    @property
    def fewer_steps(self) -> Note | None:
        """The note that says so, where fewer steps were made than were to be compared."""
        return next((note for note in self.notes if note.topic is Topic.FEWER_STEPS), None)

    @property
    def outcome(self) -> Outcome:
        """Silence is never success: where something was not seen, nothing is decided."""
        if self.failures or (self.isolation is not None and self.isolation.culprits):
            return Outcome.NOT_EQUIVALENT
        if self.undecided or self.lost or self.fewer_steps is not None:
            return Outcome.UNDECIDED
        return Outcome.EQUIVALENT

    @property
    def exit_code(self) -> int:
        """0 equivalent, 1 not, 2 could not decide."""
        return self.outcome.exit_code

    def raise_for_outcome(self) -> None:
        """Raise NotEquivalent unless the candidate was shown to be equivalent."""
        if self.outcome is not Outcome.EQUIVALENT:
            raise NotEquivalent(str(self), self)

    def write_html(self, path: Path | str) -> None:
        """Write the report as one HTML file; the path may be a URL."""
        from ttrace.report.html import write_report

        write_report(self, path)

    def counts(self) -> dict[Verdict, int]:
        counts = dict.fromkeys(Verdict, 0)
        for result in self.tensors:
            counts[result.verdict] += 1
        return {verdict: count for verdict, count in counts.items() if count}

    def to_dict(self) -> dict[str, Any]:
        """The longest lists last: people read the file from its beginning."""
        data = to_dict(self)
        tensors, details = data.pop("tensors"), data.pop("details")
        return {
            "schema": SCHEMA_VERSION,
            "outcome": self.outcome.value,
            "exit_code": self.exit_code,
            "counts": {verdict.value: count for verdict, count in self.counts().items()},
            "covered": [to_dict(found) for found in self.covered],
            "lost": [lost.value for lost in self.lost],
            **data,
            "tensors": tensors,
            "details": details,
        }

    @classmethod
    def from_dict(cls, data: Any) -> CheckResult:
        """Return the result that `to_dict` made plain; infinity and NaN may be texts in it."""
        if isinstance(data, dict) and data.get("schema") != SCHEMA_VERSION:
            raise UsageError(
                f"found a result of schema {shown(data.get('schema'))}, this ttrace reads schema "
                f"{SCHEMA_VERSION}: make it again with this version, by `ttrace diff` or `ttrace "
                "check`"
            )
        return from_dict(cls, data)


class NotEquivalent(TTraceError, AssertionError):
    """The candidate was not shown to be equivalent to the reference; `result` says everything."""

    def __init__(self, message: str, result: CheckResult) -> None:
        super().__init__(*message.split("\n"))
        self.result = result


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """What changed from one result to another: places that are blamed, and numbers of tensors.

    What failed before passes, still fails, is accepted, undecided or absent; what fails after
    still fails or newly does.
    """

    before: Outcome
    after: Outcome
    gone: tuple[Blame, ...]
    remaining: tuple[Blame, ...]
    new: tuple[Blame, ...]
    shared: int  # tensors that both results have
    passing: int = 0
    failing: int = 0
    newly_failing: int = 0
    accepted: int = 0
    undecided: int = 0
    absent: int = 0  # from the result after, so that nothing is known of them


def compare_results(before: CheckResult, after: CheckResult) -> Fix:
    """Find what changed from one result to the other."""
    # Each blame before is used up by one after it:
    #     before: forward of {a}, forward of {b, c}    after: forward of {c, d}, forward of {c}
    #     {c, d} shares c with {b, c}: remaining    {c}: nothing is left of it, new    {a}: gone
    left = [culprit.blame for culprit in before.culprits]
    remaining, new = [], []
    for blame in (culprit.blame for culprit in after.culprits):
        same = next((each for each in left if _is_same(each, blame)), None)
        if same is None:
            new.append(blame)
        else:
            left.remove(same)
            remaining.append(blame)
    old = {tensor.id: tensor.verdict for tensor in before.tensors}
    now = {tensor.id: tensor.verdict for tensor in after.tensors}
    failed = {id_ for id_, verdict in old.items() if verdict.is_failure}
    return Fix(
        before=before.outcome,
        after=after.outcome,
        gone=tuple(left),
        remaining=tuple(remaining),
        new=tuple(new),
        shared=len(old.keys() & now.keys()),
        newly_failing=sum(now[id_].is_failure for id_ in now.keys() - failed),
        **Counter(_name_change(now.get(id_)) for id_ in failed),
    )


def _is_same(one: Blame, other: Blame) -> bool:
    """Whether both are in one phase of one stage, or of modules that have one in common."""
    if one.phase is not other.phase or one.stage is not other.stage:
        return False
    return one.stage is not None or bool({*one.modules} & {*other.modules})


def _name_change(verdict: Verdict | None) -> str:
    """The field of a Fix that counts a tensor that failed before, by its verdict now."""
    if verdict is None:
        return "absent"
    if verdict.is_failure:
        return "failing"
    others = {Verdict.UNDECIDED: "undecided", Verdict.ACCEPTED: "accepted"}
    return others.get(verdict, "passing")
