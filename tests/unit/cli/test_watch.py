"""`ttrace watch`: what it says and how it ends, for commands that leave what a run would."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import tiny_train
from tests.support.invoking import Outcome, invoke
from ttrace.capture.settings import WATCH
from ttrace.core.drift import Drift, SharedKind, WatchedRun, versions_of
from ttrace.trace.watch_file import read_watched, write_watched

pytestmark = pytest.mark.flow

DRIFT = Drift(
    step=3,
    kind=SharedKind.PARAMETER,
    module="layers.1",
    name="weight",
    box="float32 [0:4] of [4]",
    versions=versions_of({0: "a" * 16, 1: "b" * 16, 2: "a" * 16}),
)
CLEAN = WatchedRun(
    world_size=3,
    steps=1000,
    watched=1000,
    compared={SharedKind.GRADIENT: 4, SharedKind.PARAMETER: 4, SharedKind.BUFFER: 1},
    ended=True,
)
WRONG = replace(CLEAN, drifts=(DRIFT,))


def watch(folder: Path, run: WatchedRun, then: str = "", *flags: str) -> Outcome:
    """Of a command that writes this, and then does something else."""
    write_watched(folder / "made", run)
    command = f'cp {folder}/made/watch.json "${WATCH}"; {then or "true"}'
    return invoke("watch", "--out", folder / "out", *flags, "--", "sh", "-c", command)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    run = replace(WRONG, broke_off="a rank is gone", unjudged={SharedKind.BUFFER: 2}, names=("a",))
    write_watched(tmp_path, run)
    assert read_watched(tmp_path) == run


def test_agreement_is_told_with_what_was_compared(tmp_path: Path) -> None:
    told = "replicas agree: 1,000 steps, 4 gradients, 4 parameters and 1 buffer on 3 ranks"
    watch(tmp_path, CLEAN).require(0, told)


def test_drift_is_told_with_tensor_and_rank_at_once_and_in_the_end(tmp_path: Path) -> None:
    outcome = watch(tmp_path, WRONG, "sleep 2.5")
    words = "step 3: parameter layers.1.weight differs between replicas: rank 1 from ranks 0, 2"
    outcome.require(1, f"DRIFT: {words}")
    assert f"ttrace: {words}; the command goes on" in outcome.err


def test_drift_counts_also_where_the_command_fails(tmp_path: Path) -> None:
    watch(tmp_path, WRONG, "exit 7").require(1, "DRIFT", "ended with exit code 7")


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (replace(CLEAN, world_size=1, watched=0, compared={}), "the run has one process"),
        (replace(CLEAN, compared={}), "no two of 3 ranks hold the same part"),
        (replace(CLEAN, steps=0, watched=0, compared={}), "the run made no step"),
        (replace(CLEAN, watched=0, compared={}), "none of 1,000 steps was watched"),
    ],
)
def test_silence_is_never_success(run: WatchedRun, told: str, tmp_path: Path) -> None:
    watch(tmp_path, run).require(2, "NOTHING TO COMPARE", told)


def test_watching_that_broke_off_is_no_agreement(tmp_path: Path) -> None:
    run = replace(CLEAN, broke_off="another rank ended")
    watch(tmp_path, run).require(2, "broke off after 1,000 steps: another rank ended")


def test_a_run_without_an_end_is_no_agreement(tmp_path: Path) -> None:
    watch(tmp_path, replace(CLEAN, ended=False)).require(2, "did not come to its end")


def test_a_command_that_fails_is_told_as_others_are(tmp_path: Path) -> None:
    watch(tmp_path, CLEAN, "exit 7").require(2, "the watched command ended with exit code 7")


def test_a_command_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    outcome = watch(tmp_path, CLEAN, "sleep 60", "--timeout", "0.5")
    outcome.require(2, "did not end within 0.5 s and was stopped")


def test_a_command_that_attaches_nothing_is_told_how(tmp_path: Path) -> None:
    invoke("watch", "--out", tmp_path / "out", "--", "true").require(2, "ttrace.attach")


def test_a_script_of_one_process_has_nothing_to_compare(tmp_path: Path) -> None:
    script = [sys.executable, tiny_train.__file__, "--steps", "2"]
    outcome = invoke("watch", "--out", tmp_path / "out", "--json", "-", "--", *script)
    outcome.require(2, "NOTHING TO COMPARE: the run has one process")
    assert (outcome.json["steps"], outcome.json["exit_code"]) == (2, 2)


def test_a_drift_of_a_tie_names_all_ranks() -> None:
    tie = replace(DRIFT, versions=versions_of({0: "a" * 16, 1: "b" * 16}))
    assert (tie.ranks, tie.majority) == ((0, 1), ())
    assert (DRIFT.ranks, DRIFT.majority) == ((1,), (0, 2))
