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

from ttrace.core.blame import Culprit
from ttrace.core.evidence import Detail, RunFacts
from ttrace.core.finding import Finding, Note, Specifics, Topic
from ttrace.core.ids import Kind, TensorId
from ttrace.core.plain import INLINE, from_dict, to_dict
from ttrace.core.readings import Reading, Statistic
from ttrace.core.record import ModuleInfo
from ttrace.core.statistics import Statistics
from ttrace.errors import TTraceError, UsageError

SCHEMA_VERSION = 5

# Error over tolerance. Chosen: correct programs outside of all calibration were below 5 when they
# raised an alarm, and mistakes mostly above 100.
NEAR, STRONG, CERTAIN = 2 / 3, 5.0, 100.0


class Verdict(StrEnum):
    """What is said of one id; every id gets one."""

    PASS = "pass"
    MISMATCH = "mismatch"  # further from the reference than rounding explains
    BORDERLINE = "borderline"  # a little further, and right by itself in an isolated run
    CONFLICT = "conflict"  # replicas disagree
    INCOMPLETE = "incomplete"  # shards are missing
    MISSING = "missing"  # in the reference only
    EXTRA = "extra"  # in the candidate only
    NONFINITE = "nonfinite"  # NaN or Inf where the reference has none
    SHAPE = "shape"  # the pieces do not fit the logical shape
    UNDECIDED = "undecided"  # no yardstick, or the reference itself cannot be trusted here

    @property
    def is_failure(self) -> bool:
        return self not in (Verdict.PASS, Verdict.BORDERLINE, Verdict.EXTRA, Verdict.UNDECIDED)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How large one reading may be: of a statistic, and of the dims it fixes."""

    statistic: Statistic
    dims: tuple[int, ...]
    allowed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far the candidate may be from the reference, where that comes from, and finer limits."""

    error_norm: float
    source: str
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One reading against what is allowed."""

    reading: Reading = field(metadata=INLINE)
    allowed: float
    ratio: float  # above 1 fails
    eps: float | None = None  # in machine epsilons of what the reference has in such a part


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

    def to_dict(self) -> dict[str, Any]:
        """Its fields, and what can be read from them without knowing how an id is written."""
        return to_dict(self) | {
            "module": self.id.module,
            "kind": self.id.kind.value,
            "slot": self.id.slot,
            "statistic": None if self.worst is None else self.worst.reading.statistic.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What was seen and what was not."""

    modules: int = 0
    never_called: tuple[str, ...] = ()
    hooks_expected: int = 0
    hooks_fired: int = 0
    unfired: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


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

    def __str__(self) -> str:
        """The headline of the report."""
        from ttrace.report.overall import headline

        return headline(self)

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
    def largest_ratio(self) -> float:
        """Error over tolerance of the worst tensor; infinite where a failure has none."""
        return max((_ratio(result) for result in self.tensors), default=0.0)

    @property
    def strength(self) -> Strength:
        """Of the comparison in which the culprits were found, where there are any."""
        largest = self.blamed_in.largest_ratio
        if largest < NEAR:
            return Strength.CLEAR
        if largest <= STRONG:
            return Strength.BORDERLINE
        return Strength.STRONG if largest <= CERTAIN else Strength.CERTAIN

    def nearest(self) -> dict[Kind, TensorResult]:
        """Of every kind the tensor that comes nearest to its tolerance, or exceeds it most."""
        found: dict[Kind, TensorResult] = {}
        for result in self.tensors:
            best = found.get(result.id.kind)
            if result.ratio is not None and (best is None or result.ratio > (best.ratio or 0.0)):
                found[result.id.kind] = result
        return found

    @property
    def fewer_steps(self) -> Note | None:
        """The note that says so, where fewer steps were made than were to be compared."""
        return next((note for note in self.notes if note.topic is Topic.FEWER_STEPS), None)

    @property
    def outcome(self) -> Outcome:
        """Silence is never success: where nothing was compared, nothing is decided."""
        if self.failures or (self.isolation is not None and self.isolation.culprits):
            return Outcome.NOT_EQUIVALENT
        if self.undecided or self.compared == 0 or self.fewer_steps is not None:
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
        """Write the report as one HTML file."""
        from ttrace.report.html import render

        Path(path).write_text(render(self), encoding="utf-8")

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
            **data,
            "tensors": tensors,
            "details": details,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CheckResult:
        """The inverse of `to_dict`; infinity and NaN may be written as strings."""
        if data.get("schema") != SCHEMA_VERSION:
            raise UsageError(
                f"a result of schema {SCHEMA_VERSION} was expected, found {data.get('schema')!r}: "
                "make it again with `ttrace check`"
            )
        return from_dict(cls, data)


def _ratio(result: TensorResult) -> float:
    counts = result.verdict in (Verdict.PASS, Verdict.BORDERLINE, Verdict.MISMATCH)
    if counts and result.ratio is not None:
        return result.ratio
    return math.inf if result.verdict.is_failure else 0.0


class NotEquivalent(TTraceError, AssertionError):
    """The candidate was not shown to be equivalent to the reference; `result` says everything."""

    def __init__(self, message: str, result: CheckResult) -> None:
        super().__init__(message)
        self.result = result
