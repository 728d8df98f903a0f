"""Trainers in their strategies: silent, whole and unchanged; made wrong, named exactly.

Some of each trainer are tried here, the others are slow; `make bench-trainers` tries them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.tracing import explain
from ttrace.lab.functions import WorkerPool
from zoo.programs.program import Program, Wrong
from zoo.programs.trial import try_program, try_wrong, unjudged
from zoo.trainers.bitwise import is_unchanged
from zoo.trainers.judged import not_judged
from zoo.trainers.registry import strategies, wrong_strategies
from zoo.trials import Trials

pytestmark = pytest.mark.trainers
QUICK = frozenset(
    {
        *("torch/fsdp1", "torch/zero-redundancy", "torchtitan/fsdp2", "torchtitan/tp"),
        *("hf-trainer/ddp-accumulation-4", "hf-trainer/moe", "lightning/ddp-clipping"),
        *("accelerate/accumulation-4", "accelerate/fsdp2-clipping", "lightning/gan"),
        *("fabric/accumulation-4", "fabric/fsdp2", "deepspeed/zero2-clipping", "deepspeed/zero3"),
    }
)
QUICK_WRONG = 3  # of each trainer, the first


def correct() -> Iterator[object]:
    for program in strategies().values():
        marks = () if program.name in QUICK else (pytest.mark.slow,)
        yield pytest.param(program, id=program.name, marks=marks)


def wrong_ones() -> Iterator[object]:
    met: Counter[str] = Counter()
    for wrong in wrong_strategies():
        trainer = wrong.name.partition("/")[0]
        met[trainer] += 1
        marks = () if met[trainer] <= QUICK_WRONG else (pytest.mark.slow,)
        yield pytest.param(wrong, id=wrong.name, marks=marks)


@pytest.mark.parametrize("program", list(correct()))
def test_a_correct_strategy_is_silent_and_all_of_it_is_judged(
    program: Program, fresh_trials: Trials
) -> None:
    trial = try_program(fresh_trials, program)
    assert trial.is_silent, explain(trial.told)
    assert program.unjudged or not unjudged(trial.plain)
    assert not_judged(trial.plain) == ()


@pytest.mark.parametrize("program", list(correct()))
def test_tracing_changes_no_bit(program: Program, fresh_pool: WorkerPool) -> None:
    assert is_unchanged(fresh_pool, program.candidate)


@pytest.mark.parametrize("wrong", list(wrong_ones()))
def test_a_wrong_strategy_is_named_and_nothing_else(wrong: Wrong, fresh_trials: Trials) -> None:
    trial = try_wrong(fresh_trials, strategies()[wrong.program], wrong)
    assert wrong.is_named_by(trial.named), explain(trial.told)


def test_every_trainer_has_three_wrong_runs() -> None:
    trainers = {name.partition("/")[0] for name in strategies()}
    for trainer in trainers:
        assert sum(each.name.startswith(f"{trainer}/") for each in wrong_strategies()) >= 3, trainer


def test_names_are_taken_once_and_quick_ones_are_there() -> None:
    assert set(strategies()) >= QUICK
    names = [each.name for each in wrong_strategies()]
    assert len(set(names)) == len(names)
    assert not set(names) & set(strategies())
