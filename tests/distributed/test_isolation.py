"""Isolated runs of the demo: bitwise the reference, silent on correct layouts, exact in bf16.

That every bug is named by them in fp32 is in tests/bugs/test_bugs.py.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.tracing import TrainConfig, check, explain, trace_here, trace_in_pool
from ttrace.analysis.check import check_isolated
from ttrace.analysis.isolate import write_plans
from ttrace.core.blame import Blame, Phase
from ttrace.core.results import CheckResult
from ttrace.lab.functions import WorkerPool
from zoo.trials import blames

LAYOUTS = {
    "ddp": TrainConfig(dp=2, data_parallel="ddp", microbatches=2),
    "tp": TrainConfig(tp=2, sequence_parallel=False, microbatches=1),
    "fsdp-tp-sp-tied": TrainConfig(dp=2, tp=2, tied=True, microbatches=2),
}

Isolated = Callable[[TrainConfig], CheckResult]


@pytest.fixture(scope="module")
def tapped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TrainConfig], tuple[Path, ...]]:
    """The reference with taps, isolated, and isolated with noise; made once for each model."""
    made: dict[TrainConfig, tuple[Path, ...]] = {}

    def make(config: TrainConfig) -> tuple[Path, ...]:
        single = TrainConfig(microbatches=1, dtype=config.dtype, tied=config.tied)
        if single not in made:
            folder = tmp_path_factory.mktemp("tapped")
            with pytest.MonkeyPatch.context() as patch:
                plain = trace_here(single, folder / "plain", patch, tap=True)
                plans = folder / "plans"
                write_plans(plain, plain, plans)
                isolated = trace_here(single, folder / "isolated", patch, plan=plans)
                noisy = trace_here(single, folder / "noisy", patch, plan=plans, noise_seed=1)
            made[single] = (plain, isolated, noisy)
        return made[single]

    return make


@pytest.fixture
def isolate(
    tapped: Callable[[TrainConfig], tuple[Path, ...]], pool: WorkerPool, tmp_path: Path
) -> Isolated:
    def run(config: TrainConfig) -> CheckResult:
        plain, _, noisy = tapped(config)
        first = trace_in_pool(config, tmp_path / "first", pool)
        plans = tmp_path / "plans"
        write_plans(plain, first, plans)
        second = trace_in_pool(config, tmp_path / "second", pool, plan=plans)
        return check_isolated(plain, second, plans=plans, perturbed=[noisy])

    return run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_isolated_reference_is_bitwise_the_reference(
    dtype: str, tapped: Callable[[TrainConfig], tuple[Path, ...]]
) -> None:
    plain, isolated, _ = tapped(TrainConfig(dtype=dtype))
    result = check(plain, isolated)
    assert result.compared > 300
    assert all(r.statistics is not None and r.statistics.equal for r in result.tensors)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_isolated_correct_candidate_passes(layout: str, dtype: str, isolate: Isolated) -> None:
    result = isolate(replace(LAYOUTS[layout], dtype=dtype))
    assert result.exit_code == 0, explain(result)
    assert result.coverage.faults == ()


def test_isolation_names_the_bug_in_bfloat16(isolate: Isolated) -> None:
    config = TrainConfig(dp=2, tp=2, microbatches=2, dtype="bfloat16", bug="rope-positions")
    assert blames(isolate(config)) == (Blame.of("layers.1.attention", phase=Phase.FORWARD),)
