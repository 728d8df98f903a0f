"""Near a limit more evidence is fetched, and the isolated run decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.made_results import tensor
from ttrace.core.blame import Blame, Culprit, Phase, Reason
from ttrace.core.finding import Note, Topic
from ttrace.core.ids import TensorId
from ttrace.core.results import CheckResult, Outcome, Strength, Verdict
from ttrace.errors import CommandFailed
from ttrace.lab import isolation
from ttrace.lab import series as lab
from ttrace.lab.experiment import Experiment
from ttrace.lab.run import TracedRun
from ttrace.report import overall

ID = TensorId.parse("step0/a:output.0")
OTHER = TensorId.parse("step0/b:output.0")
BLAMED = Culprit(
    blame=Blame(modules=("a",), phase=Phase.FORWARD),
    reason=Reason.FIRST_WRONG_OUTPUT,
    evidence=(ID,),
)
MORE = [f"perturbed-{number}" for number in (2, 3, 4, 5)]
PLAIN = ["reference", "candidate", "perturbed-1"]
ISOLATED = ["isolation/reference", "isolation/perturbed-1", "isolation/candidate"]


def result(ratio: float, *, verdict: Verdict | None = None, id_: TensorId = ID) -> CheckResult:
    found = tensor(id_, 0, ratio, verdict)
    culprits = (BLAMED,) if found.verdict.is_failure else ()
    return CheckResult(
        reference="", candidate="", perturbed=(), tensors=(found,), culprits=culprits
    )


class Told:
    """An executor that runs nothing, and comparisons that say one after the other what is told."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        plain: Sequence[CheckResult],
        isolated: Sequence[CheckResult] = (),
        *,
        dies: Sequence[str] = (),
    ) -> None:
        self.names: list[str] = []
        self._dies = dies
        self._plain, self._isolated = list(plain), list(isolated)
        monkeypatch.setattr(lab, "check", lambda *_, **__: self._plain.pop(0))
        monkeypatch.setattr(isolation, "check_isolated", lambda *_, **__: self._isolated.pop(0))
        monkeypatch.setattr(isolation, "write_plans", lambda *_, **__: None)

    def __call__(self, run: TracedRun) -> None:
        if run.name in self._dies:
            raise CommandFailed(f"the {run.name} run died")
        self.names.append(run.name)

    def diff(self, folder: Path) -> CheckResult:
        asked = Experiment(reference="one", candidate="four", folder=folder, execute=self)
        found = asked.diff()
        assert not self._plain
        assert not self._isolated
        return found


def topics(found: CheckResult) -> list[Topic]:
    return [note.topic for note in found.notes]


def test_far_below_the_limit_nothing_more_is_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = Told(monkeypatch, [result(0.3)])
    found = told.diff(tmp_path)
    assert told.names == PLAIN
    assert (found.outcome, found.strength) == (Outcome.EQUIVALENT, Strength.CLEAR)


@pytest.mark.parametrize(("isolated", "exit_code"), [(0.2, 0), (40.0, 1)])
def test_where_modules_quantise_a_pass_is_looked_into(
    isolated: float, exit_code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Codes that flip hide mistakes of whole layers."""
    note = Note(topic=Topic.CODES_FLIP, count=1, modules=("a",))
    plain = replace(result(0.3), notes=(note,))
    told = Told(monkeypatch, [plain], [result(isolated)])
    found = told.diff(tmp_path)
    assert told.names == [*PLAIN, *ISOLATED]
    assert found.exit_code == exit_code
    assert found.isolation is not None
    assert found.failures == ()
    assert topics(found) == []
    said = overall.follow_on(found)
    assert said == "" if exit_code == 0 else said.startswith("no tensor of the plain comparison")


def test_far_above_the_limit_only_the_isolated_run_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = Told(monkeypatch, [result(400)], [result(5000)])
    found = told.diff(tmp_path)
    assert told.names == [*PLAIN, *ISOLATED]
    assert str(found) == "NOT EQUIVALENT: a, forward"


@pytest.mark.parametrize("ratio", [0.8, 1.3, 4.9])
def test_further_perturbed_runs_may_be_enough(
    ratio: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = Told(monkeypatch, [result(ratio), result(0.5)])
    found = told.diff(tmp_path)
    assert told.names == [*PLAIN, *MORE]
    assert found.outcome is Outcome.EQUIVALENT
    assert topics(found) == [Topic.MORE_RUNS]
    (said,) = map(overall.note, found.notes)
    assert f"the largest error {ratio:.4g} of its tolerance: 4 further" in said
    assert said.endswith("it is 0.50")


def test_what_is_right_by_itself_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = Told(monkeypatch, [result(1.3), result(1.2)], [result(0.2)])
    found = told.diff(tmp_path)
    assert told.names == [*PLAIN, *MORE, *ISOLATED]
    assert found.exit_code == 0
    assert found.tensors[0].verdict is Verdict.BORDERLINE
    assert found.culprits == ()
    assert topics(found) == [Topic.MORE_RUNS, Topic.RIGHT_BY_ITSELF]
    assert str(found) == (
        "EQUIVALENT in forward: 0 of 1 tensor within tolerance, 1 borderline (up to 1.20 of it) "
        "and right by itself (0 exactly equal); no gradient was recorded"
    )


@pytest.mark.parametrize("ratio", [0.9, 1.3])
def test_what_is_wrong_by_itself_is_named(
    ratio: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where it hides below the limit of the plain comparison."""
    told = Told(monkeypatch, [result(ratio), result(ratio)], [result(40)])
    found = told.diff(tmp_path)
    assert found.exit_code == 1
    assert str(found) == "NOT EQUIVALENT (strong, 40x the tolerance): a, forward"


def test_an_isolated_run_that_is_borderline_gets_more_evidence_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = Told(monkeypatch, [result(30)], [result(1.2), result(1.1)])
    found = told.diff(tmp_path)
    assert told.names == [*PLAIN, *ISOLATED, *(f"isolation/{name}" for name in MORE)]
    assert str(found) == "NOT EQUIVALENT (borderline, 1.1x the tolerance): a, forward"


@pytest.mark.parametrize(
    "isolated",
    [result(0.2, id_=OTHER), result(0.2, verdict=Verdict.UNDECIDED)],
    ids=["not seen", "undecided"],
)
def test_what_the_isolated_run_does_not_judge_stays_wrong(
    isolated: CheckResult, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = Told(monkeypatch, [result(1.3), result(1.2)], [isolated])
    found = told.diff(tmp_path)
    assert found.exit_code == 1
    assert topics(found) == [Topic.MORE_RUNS, Topic.NO_ROOT_CAUSE]


def test_what_is_far_beyond_its_limit_stays_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = Told(monkeypatch, [result(30)], [result(0.2)]).diff(tmp_path)
    assert found.exit_code == 1


def test_a_failure_of_another_kind_is_certain() -> None:
    missing = replace(result(0.9, verdict=Verdict.MISSING).tensors[0], ratio=None)
    found = replace(result(0.9), tensors=(missing,))
    assert found.strength is Strength.CERTAIN


@pytest.mark.parametrize(
    "dies",
    [
        ("isolation/reference", "isolation/coarse/reference"),
        ("isolation/perturbed-1", "isolation/coarse/candidate"),
    ],
)
@pytest.mark.parametrize(("ratio", "exit_code"), [(0.9, 0), (1.3, 1), (400.0, 1)])
def test_an_isolated_run_that_dies_leaves_the_verdict_that_stands(
    ratio: float,
    exit_code: int,
    dies: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    looks = 2 if result(ratio).strength is Strength.BORDERLINE else 1
    found = Told(monkeypatch, [result(ratio)] * looks, dies=dies).diff(tmp_path)
    assert found.exit_code == exit_code
    assert found.notes[-1] == Note(topic=Topic.NO_EVIDENCE, text=f"the {dies[0]} run died")


@pytest.mark.parametrize("dies", ISOLATED)
def test_an_isolated_run_that_dies_is_repeated_with_fewer_boundaries(
    dies: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = Told(monkeypatch, [result(400)], [result(5000)], dies=[dies])
    found = told.diff(tmp_path)
    coarse = [name.replace("isolation", "isolation/coarse") for name in ISOLATED]
    assert told.names == [*PLAIN, *ISOLATED[: ISOLATED.index(dies)], *coarse]
    assert str(found) == "NOT EQUIVALENT: a, forward"
    assert found.notes == (Note(topic=Topic.COARSER, text=f"the {dies} run died"),)


def test_a_further_perturbed_run_that_dies_leaves_the_first_look(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = Told(monkeypatch, [result(1.3)], [result(40)], dies=["perturbed-3"])
    found = told.diff(tmp_path)
    assert found.exit_code == 1
    assert topics(found) == [Topic.NO_EVIDENCE]
