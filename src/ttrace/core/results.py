"""Results: what a check says. Plain values with one machine form.

The two methods that make something for people import the report when they are called: a result is
where a user looks for them, and this file needs no formatter to be read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any

from ttrace.core.acceptance import AcceptedTensors
from ttrace.core.blame import Culprit
from ttrace.core.coverage import Coverage, Covered, Lost, StepPart, covered
from ttrace.core.door import from_dict
from ttrace.core.evidence import Detail, RunFacts
from ttrace.core.finding import Finding, Note, Specifics, Topic
from ttrace.core.ids import Kind, TensorId
from ttrace.core.judgement import Judgement, Tolerance
from ttrace.core.plain import to_dict
from ttrace.core.record import ModuleInfo
from ttrace.core.statistics import Statistics
from ttrace.errors import TTraceError, UsageError
from ttrace.text import inert

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
        """The inverse of `to_dict`; infinity and NaN may be written as strings."""
        if isinstance(data, dict) and data.get("schema") != SCHEMA_VERSION:
            raise UsageError(
                f"a result of schema {SCHEMA_VERSION} was expected, found {data.get('schema')!r}: "
                "make it again with `ttrace check`"
            )
        return from_dict(cls, data)


class NotEquivalent(TTraceError, AssertionError):
    """The candidate was not shown to be equivalent to the reference; `result` says everything."""

    def __init__(self, message: str, result: CheckResult) -> None:
        super().__init__(*message.split("\n"))
        self.result = result
