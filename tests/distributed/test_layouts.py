"""Correct candidates in every layout must pass, in fp32 and bf16, with every tensor judged."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.tracing import (
    TrainConfig,
    check,
    explain,
    trace_here,
    trace_in_pool,
    train_rank,
)
from ttrace.core.ids import Kind
from ttrace.core.results import CheckResult, Verdict
from ttrace.lab.functions import WorkerPool
from ttrace.lab.run import Function
from zoo.trials import Trials

LAYOUTS = {
    "ddp": TrainConfig(dp=2, data_parallel="ddp", microbatches=1),
    "ddp-microbatches": TrainConfig(dp=2, data_parallel="ddp", microbatches=2),
    "fsdp": TrainConfig(dp=2, microbatches=2),
    "fsdp-4": TrainConfig(dp=4, microbatches=1),
    "tp": TrainConfig(tp=2, sequence_parallel=False, microbatches=1),
    "tp-sp": TrainConfig(tp=2, microbatches=2),
    "fsdp-tp-sp": TrainConfig(dp=2, tp=2, microbatches=2),
    "fsdp-tp": TrainConfig(dp=2, tp=2, sequence_parallel=False, microbatches=1),
    "ddp-tp-sp": TrainConfig(dp=2, tp=2, data_parallel="ddp", microbatches=2),
    "fsdp-tp-sp-tied": TrainConfig(dp=2, tp=2, tied=True, microbatches=2),
}

Reference = Callable[[TrainConfig], tuple[Path, Path]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Traces of one process, plain and perturbed, made once for each model."""
    made: dict[TrainConfig, tuple[Path, Path]] = {}

    def make(config: TrainConfig) -> tuple[Path, Path]:
        single = replace(
            config, dp=1, tp=1, microbatches=1, data_parallel="fsdp", sequence_parallel=True
        )
        if single not in made:
            folder = tmp_path_factory.mktemp("reference")
            with pytest.MonkeyPatch.context() as patch:
                made[single] = (
                    trace_here(single, folder / "plain", patch),
                    trace_here(single, folder / "noisy", patch, noise_seed=1),
                )
        return made[single]

    return make


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_correct_layout_passes(
    layout: str, dtype: str, pool: WorkerPool, reference: Reference, tmp_path: Path
) -> None:
    config = replace(LAYOUTS[layout], dtype=dtype)
    plain, noisy = reference(config)
    result = check(plain, trace_in_pool(config, tmp_path / "candidate", pool), perturbed=[noisy])
    assert result.exit_code == 0, explain(result)
    assert set(result.counts()) == {Verdict.PASS}
    assert result.coverage.faults == ()
    assert result.coverage.hooks_fired == result.coverage.hooks_expected
    assert not any("no local gradient" in note.text for note in result.notes)
    # The demo's only buffer is a constant; torch reduces where it accumulates, and once.
    between = {Kind.ACCUMULATED_GRAD, Kind.REDUCED_GRAD}
    assert kinds(result) == set(Kind) - {Kind.BUFFER} - between
    assert slots(result, Kind.GRAD) == slots(result, Kind.PARAM)
    assert slots(result, Kind.CLIPPED_GRAD) == slots(result, Kind.PARAM)


def kinds(result: CheckResult) -> set[Kind]:
    return {found.id.kind for found in result.tensors}


def slots(result: CheckResult, kind: Kind) -> set[tuple[str, str]]:
    """The parameters of which there is a tensor of this kind."""
    return {(r.id.module, r.id.slot) for r in result.tensors if r.id.kind is kind}


def test_several_steps_are_judged_each(trials: Trials) -> None:
    """As `diff` compares: where one perturbed run leaves a step borderline, it makes more.

    In the first step a gradient near zero may move a parameter either way, in each run another one.
    """
    config = TrainConfig(dp=2, tp=2, microbatches=2, steps=2)
    alone = TrainConfig(microbatches=1, steps=2)
    result = trials.compare(
        Function(train_rank, arguments=(alone,)),
        Function(train_rank, ranks=4, arguments=(config,)),
        steps=2,
    )
    assert result.exit_code == 0, explain(result)
    assert {r.id.step for r in result.tensors} == {0, 1}


@pytest.fixture(scope="module")
def trusted(pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A distributed reference, plain and perturbed."""
    folder, config = tmp_path_factory.mktemp("trusted"), TrainConfig(dp=2, tp=2, microbatches=2)
    return (
        trace_in_pool(config, folder / "plain", pool),
        trace_in_pool(config, folder / "noisy", pool, noise_seed=1),
    )


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(microbatches=1),
        TrainConfig(dp=2, tp=2, microbatches=1),
        TrainConfig(dp=4, microbatches=1),
        TrainConfig(tp=2, sequence_parallel=False, microbatches=1),
    ],
    ids=["one-process", "same-layout", "fsdp-4", "tp"],
)
def test_distributed_run_serves_as_reference(
    config: TrainConfig,
    pool: WorkerPool,
    trusted: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if config.world_size == 1:
        candidate = trace_here(config, tmp_path / "candidate", monkeypatch)
    else:
        candidate = trace_in_pool(config, tmp_path / "candidate", pool)
    result = check(trusted[0], candidate, perturbed=[trusted[1]])
    assert result.exit_code == 0, explain(result)
    assert result.compared > 200
