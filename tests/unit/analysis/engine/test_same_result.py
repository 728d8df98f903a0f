"""Every engine leads to the same result, bit for bit: of full tensors and of fingerprints."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

import ttrace
from tests.support import tiny_train
from ttrace.analysis.engine import Engine, Job, Processes, Serial, Workplace
from ttrace.core.results import CheckResult, Outcome
from ttrace.report.json_file import dumps
from zoo.made_up.traces import Wrong, write_candidate, write_reference
from zoo.made_up.values import Mesh

T = TypeVar("T")
MESH = Mesh(tp=2, dp=2)
CASES = {
    "full": Outcome.EQUIVALENT,
    "full-wrong": Outcome.NOT_EQUIVALENT,
    "full-nan": Outcome.NOT_EQUIVALENT,
    "fingerprint": Outcome.EQUIVALENT,
    "fingerprint-wrong": Outcome.NOT_EQUIVALENT,
}


class Shared(Engine):
    """An engine that several checks use: starting processes takes longer than the tests."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def map(self, jobs: Sequence[Job[T]], here: Workplace) -> Iterator[tuple[int, T]]:
        return self.engine.map(jobs, here)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    for name, seed in (("reference", None), ("perturbed", 1)):
        tiny_train.record(folder / f"full-{name}", noise_seed=seed)
        write_reference(folder / f"fingerprint-{name}", 1, MESH.dp, noise_seed=seed)
    tiny_train.record(folder / "full")
    tiny_train.record(folder / "full-wrong", "--scale", "1.001")
    tiny_train.record(folder / "full-nan", "--nan", "--empty")  # and a tensor without a pair
    write_candidate(folder / "fingerprint", 1, MESH)
    wrong = Wrong(module="layers.0.feed_forward.w2", rank=3)
    write_candidate(folder / "fingerprint-wrong", 1, MESH, wrong)
    return folder


@pytest.fixture(scope="module")
def serial(traces: Path) -> Callable[[str], CheckResult]:
    known: dict[str, CheckResult] = {}

    def result(case: str) -> CheckResult:
        if case not in known:
            known[case] = ttrace.check(**given(traces, case), engine=Serial())
        return known[case]

    return result


@pytest.fixture(scope="module")
def processes() -> Iterator[Engine]:
    with Processes(2) as engine:
        yield Shared(engine)


def given(traces: Path, case: str) -> dict[str, Any]:
    form = case.partition("-")[0]
    return {
        "reference": traces / f"{form}-reference",
        "candidate": traces / case,
        "perturbed": [traces / f"{form}-perturbed"],
    }


def written(result: CheckResult) -> str:
    """NaN is not equal to itself; its text is."""
    return dumps(result.to_dict())


@pytest.mark.flow
@pytest.mark.parametrize("case", CASES)
def test_of_processes(
    case: str, traces: Path, serial: Callable[[str], CheckResult], processes: Engine
) -> None:
    result = ttrace.check(**given(traces, case), engine=processes)
    assert result.outcome is CASES[case]
    assert written(result) == written(serial(case))


def test_another_candidate_has_another_result(serial: Callable[[str], CheckResult]) -> None:
    """The companion of the tests above: they would see a difference."""
    assert len({written(serial(case)) for case in CASES}) == len(CASES)


@pytest.fixture(scope="module")
def on_ray() -> Iterator[Engine]:
    from ttrace.analysis.engine.on_ray import OnRay

    with OnRay(2) as engine:
        yield Shared(engine)


@pytest.mark.flow
@pytest.mark.extras
@pytest.mark.filterwarnings("ignore")  # Ray leaves sockets and processes to the end
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed: `make test-flows` does it",
)
@pytest.mark.parametrize("case", CASES)
def test_of_ray(
    case: str, traces: Path, serial: Callable[[str], CheckResult], on_ray: Engine
) -> None:
    result = ttrace.check(**given(traces, case), engine=on_ray)
    assert written(result) == written(serial(case))
