"""Results: what a check says. Plain values with one machine form.

The two methods that make something for people import the report when they are called: a result is
where a user looks for them, and this file needs no formatter to be read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any

from ttrace.core.evidence import Detail, RunFacts
from ttrace.core.ids import TensorId
from ttrace.core.readings import Reading, Statistic
from ttrace.core.record import ModuleInfo
from ttrace.core.statistics import Statistics
from ttrace.errors import TTraceError, UsageError

SCHEMA_VERSION = 4
_READABLE = (3, SCHEMA_VERSION)  # 4 only added to it


class Verdict(StrEnum):
    """What is said of one id; every id gets one."""

    PASS = "pass"
    MISMATCH = "mismatch"  # further from the reference than rounding explains
    CONFLICT = "conflict"  # replicas disagree
    INCOMPLETE = "incomplete"  # shards are missing
    MISSING = "missing"  # in the reference only
    EXTRA = "extra"  # in the candidate only
    NONFINITE = "nonfinite"  # NaN or Inf where the reference has none
    SHAPE = "shape"  # the pieces do not fit the logical shape
    UNDECIDED = "undecided"  # no yardstick, or the reference itself cannot be trusted here

    @property
    def is_failure(self) -> bool:
        return self not in (Verdict.PASS, Verdict.EXTRA, Verdict.UNDECIDED)


class Outcome(StrEnum):
    """What is said of the whole comparison."""

    EQUIVALENT = "equivalent"
    NOT_EQUIVALENT = "not equivalent"
    UNDECIDED = "undecided"

    @property
    def exit_code(self) -> int:
        return list(Outcome).index(self)


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

    def to_json(self) -> dict[str, Any]:
        limits = [
            {"statistic": x.statistic.value, "dims": list(x.dims), "allowed": x.allowed}
            for x in self.limits
        ]
        return {"error_norm": self.error_norm, "source": self.source, "limits": limits}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Tolerance:
        return cls(
            error_norm=float(data["error_norm"]),
            source=data["source"],
            limits=tuple(
                Limit(
                    statistic=Statistic(limit["statistic"]),
                    dims=tuple(limit["dims"]),
                    allowed=float(limit["allowed"]),
                )
                for limit in data["limits"]
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One reading against what is allowed."""

    reading: Reading
    allowed: float
    ratio: float  # above 1 fails
    eps: float | None = None  # in machine epsilons of what the reference has in such a part

    def to_json(self) -> dict[str, Any]:
        return {
            "statistic": self.reading.statistic.value,
            "dims": list(self.reading.dims),
            "index": list(self.reading.index),
            "value": self.reading.value,
            "allowed": self.allowed,
            "ratio": self.ratio,
            "eps": self.eps,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Judgement:
        reading = Reading(
            statistic=Statistic(data["statistic"]),
            value=float(data["value"]),
            dims=tuple(data["dims"]),
            index=tuple(data["index"]),
        )
        return cls(
            reading=reading,
            allowed=float(data["allowed"]),
            ratio=float(data["ratio"]),
            eps=_maybe(data["eps"]),
        )


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
    note: str = ""

    @property
    def worst(self) -> Judgement | None:
        """The statistic that decides."""
        return max(self.judgements, key=lambda judgement: judgement.ratio, default=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "id": str(self.id),
            "module": self.id.module,
            "kind": self.id.kind.value,
            "slot": self.id.slot,
            "verdict": self.verdict.value,
            "order": self.order,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "statistics": None if self.statistics is None else self.statistics.to_json(),
            "tolerance": None if self.tolerance is None else self.tolerance.to_json(),
            "statistic": None if self.worst is None else self.worst.reading.statistic.value,
            "judgements": [judgement.to_json() for judgement in self.judgements],
            "ratio": self.ratio,
            "error_eps": self.error_eps,
            "ranks": list(self.ranks),
            "note": self.note,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TensorResult:
        found, tolerance = data["statistics"], data["tolerance"]
        return cls(
            id=TensorId.parse(data["id"]),
            verdict=Verdict(data["verdict"]),
            order=data["order"],
            shape=tuple(data["shape"]),
            dtype=data["dtype"],
            statistics=None if found is None else Statistics.from_json(_numbers(found)),
            tolerance=None if tolerance is None else Tolerance.from_json(tolerance),
            judgements=tuple(map(Judgement.from_json, data["judgements"])),
            ratio=_maybe(data["ratio"]),
            error_eps=_maybe(data["error_eps"]),
            ranks=tuple(data["ranks"]),
            note=data["note"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """Where the first thing went wrong: a module or a stage of the step, and which part."""

    where: str
    part: str  # forward, backward, weight gradient, gradient reduction, clip, state, update ...
    reason: str
    evidence: tuple[TensorId, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "where": self.where,
            "part": self.part,
            "reason": self.reason,
            "evidence": [str(id_) for id_ in self.evidence],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Culprit:
        return cls(
            where=data["where"],
            part=data["part"],
            reason=data["reason"],
            evidence=tuple(map(TensorId.parse, data["evidence"])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What was seen and what was not."""

    modules: int = 0
    never_called: tuple[str, ...] = ()
    hooks_expected: int = 0
    hooks_fired: int = 0
    unfired: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "modules": self.modules,
            "never_called": list(self.never_called),
            "hooks_expected": self.hooks_expected,
            "hooks_fired": self.hooks_fired,
            "unfired": list(self.unfired),
            "faults": list(self.faults),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Coverage:
        lists = ("never_called", "unfired", "faults")
        return cls(**(data | {name: tuple(data[name]) for name in lists}))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Everything a check found out."""

    reference: str
    candidate: str
    perturbed: tuple[str, ...]
    tensors: tuple[TensorResult, ...]
    culprits: tuple[Culprit, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    notes: tuple[str, ...] = ()
    isolation: CheckResult | None = None  # of the isolated run, when there was one
    details: tuple[Detail, ...] = ()  # of suspects only
    runs: tuple[RunFacts, ...] = ()  # reference, candidate, then the perturbed references
    modules: tuple[ModuleInfo, ...] = ()  # of the candidate

    def __str__(self) -> str:
        """The headline of the report."""
        from ttrace.report.view import headline

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
    def failures(self) -> tuple[TensorResult, ...]:
        return tuple(result for result in self.tensors if result.verdict.is_failure)

    @property
    def undecided(self) -> tuple[TensorResult, ...]:
        return tuple(r for r in self.tensors if r.verdict is Verdict.UNDECIDED)

    @property
    def compared(self) -> int:
        return sum(result.statistics is not None for result in self.tensors)

    @property
    def outcome(self) -> Outcome:
        """Silence is never success: where nothing was compared, nothing is decided."""
        if self.failures:
            return Outcome.NOT_EQUIVALENT
        if self.undecided or self.compared == 0:
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
        return {
            "schema": SCHEMA_VERSION,
            "outcome": self.outcome.value,
            "exit_code": self.exit_code,
            "reference": self.reference,
            "candidate": self.candidate,
            "perturbed": list(self.perturbed),
            "counts": {verdict.value: count for verdict, count in self.counts().items()},
            "culprits": [culprit.to_json() for culprit in self.culprits],
            "coverage": self.coverage.to_json(),
            "notes": list(self.notes),
            "isolation": None if self.isolation is None else self.isolation.to_dict(),
            "tensors": [result.to_json() for result in self.tensors],
            "details": [detail.to_json() for detail in self.details],
            "runs": [run.to_json() for run in self.runs],
            "modules": [
                {"path": m.path, "class": m.class_name, "source": m.source} for m in self.modules
            ],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CheckResult:
        """The inverse of `to_dict`; infinity and NaN may be written as strings."""
        if data.get("schema") not in _READABLE:
            raise UsageError(
                f"a result of schema {SCHEMA_VERSION} was expected, found {data.get('schema')!r}: "
                "make it again with `ttrace check`"
            )
        isolation = data["isolation"]
        return cls(
            reference=data["reference"],
            candidate=data["candidate"],
            perturbed=tuple(data["perturbed"]),
            tensors=tuple(map(TensorResult.from_json, data["tensors"])),
            culprits=tuple(map(Culprit.from_json, data["culprits"])),
            coverage=Coverage.from_json(data["coverage"]),
            notes=tuple(data["notes"]),
            isolation=None if isolation is None else cls.from_dict(isolation),
            details=tuple(map(Detail.from_json, data["details"])),
            runs=tuple(map(RunFacts.from_json, data["runs"])),
            modules=tuple(
                ModuleInfo(path=m["path"], class_name=m["class"], source=m["source"])
                for m in data["modules"]
            ),
        )


class NotEquivalent(TTraceError, AssertionError):
    """The candidate was not shown to be equivalent to the reference; `result` says everything."""

    def __init__(self, message: str, result: CheckResult) -> None:
        super().__init__(message)
        self.result = result


def _maybe(value: float | str | None) -> float | None:
    return None if value is None else float(value)


def _numbers(data: dict[str, Any]) -> dict[str, Any]:
    return {k: float(v) if isinstance(v, str) else v for k, v in data.items()}
