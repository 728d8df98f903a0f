"""Programs of the grid of correct runs are correct, and those that were accused once are silent."""

from dataclasses import replace

import pytest

from tests.support.tracing import explain
from ttrace.lab.functions import WorkerPool
from ttrace.lab.run import Function
from zoo.clean.case import Case
from zoo.clean.hugging_face import HUGGING_FACE, is_installed
from zoo.clean.layouts import LAYOUTS
from zoo.clean.registry import OWN
from zoo.clean.train import train_and_tell, train_rank
from zoo.clean.verify import LIMIT, Told, apart, as_fp64, differences
from zoo.trials import Trials

SMALL = [
    as_fp64(
        Case(
            architecture=architecture.name,
            batch=4,
            positions=64 if architecture.is_image else 8,
            layout=architecture.layouts[0],
        )
    )
    for architecture in OWN
]


def train_all(cases: list[Case]) -> list[Told]:
    """In one process group: making one takes longer than most of the steps."""
    return [train_and_tell(case) for case in cases]


def test_every_architecture_trains_on_two_ranks_as_on_one(pool: WorkerPool) -> None:
    assert {LAYOUTS[case.layout].ranks for case in SMALL} == {2}
    (expected,) = pool.run(1, train_all, [case.reference for case in SMALL])
    ranks = pool.run(2, train_all, SMALL)
    for number, case in enumerate(SMALL):
        found = apart(expected[number], [held[number] for held in ranks])
        assert max(found.values()) < LIMIT, (case.key, found)
        assert any(name.endswith(" gradient") for name in found)


@pytest.mark.parametrize("layout", ["fsdp2", "ddp2-accumulate2", "tp2", "cp2"])
def test_every_way_to_split_a_language_model_trains_as_one_process(
    layout: str, pool: WorkerPool
) -> None:
    case = Case(architecture="llama", batch=4, positions=8)
    found = differences(replace(case, layout=layout), pool)  # type: ignore[arg-type]
    assert max(found.values()) < LIMIT, found


def test_another_training_would_be_found(pool: WorkerPool) -> None:
    (case,) = [case for case in SMALL if case.architecture == "mlp"]
    (expected,) = pool.run(1, train_and_tell, case.reference)
    (other,) = pool.run(1, train_and_tell, replace(case.reference, seed=2))
    assert min(apart(expected, [other]).values()) > LIMIT


@pytest.mark.extras
@pytest.mark.skipif(not is_installed(), reason="transformers is not installed: make test-flows")
@pytest.mark.parametrize("name", [architecture.name for architecture in HUGGING_FACE])
def test_models_of_hugging_face_train_on_two_ranks_as_on_one(name: str, pool: WorkerPool) -> None:
    case = Case(architecture=name, batch=4, positions=64 if name == "hf-vit" else 8)
    assert max(differences(case, pool).values()) < LIMIT


LONG_SUMS = [
    Case(architecture="layernorm", batch=8, positions=2048, depth=1),
    Case(architecture="layernorm", batch=8, positions=2048, depth=1, dtype="bf16"),
    Case(architecture="resnet-frozen", batch=8, positions=1024, width=16),
    Case(architecture="llama", batch=8, positions=16, layout="fsdp2", optimizer="muon"),
    Case(architecture="gru", batch=8, positions=64, dtype="bf16", layout="accumulate4"),
]


@pytest.mark.parametrize("case", LONG_SUMS, ids=lambda case: case.key)
def test_programs_that_were_accused_are_silent(case: Case, trials: Trials) -> None:
    """Sums over 16,384 rows, products in bf16 inside an optimizer, gradients over 64 positions."""
    trial = trials.run(
        Function(train_rank, arguments=(case.reference,)),
        Function(train_rank, ranks=LAYOUTS[case.layout].ranks, arguments=(case,)),
        steps=case.steps,
    )
    assert len(trial.results) == 2
    for result in trial.results:
        assert not (*result.failures, *result.undecided), explain(result)
        assert 0 < result.largest_ratio < 0.8
