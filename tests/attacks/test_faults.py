"""A sample of `make faults`: a fault of the tracer, wherever it is, does not reach the run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attacks.faults.campaign import PROGRAMS, Expected, attack, expected, faults
from attacks.faults.places import Fault, Place
from ttrace.adapters import patching
from ttrace.capture import guard
from ttrace.capture.guard import Guard, Handles, Hook

pytestmark = pytest.mark.flow

ROOT = Path(__file__).parents[2]
_SAMPLE = "40"  # chosen: seconds


def test_no_fault_of_a_sample_reaches_the_run() -> None:
    programs = ["plain", "handed", "raising", "raising_handed", "outside"]
    command = [sys.executable, "-m", "attacks.faults", *programs, "--cases", _SAMPLE, "--jobs", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{_SAMPLE} faults raised" in done.stdout


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    return expected(PROGRAMS["outside"], tmp_path_factory.mktemp("known"))


def found(known: Expected, function: str) -> set[str]:
    """What is wrong with runs in which this function raises for the first time."""
    (place,) = (place for place in known.counted.calls if place.function == function)
    has_fired, violations = attack(Fault(place, 1, "RuntimeError"), known)
    assert has_fired
    return {violation.kind for violation in violations}


def unguarded(self: Hook, *args: Any) -> Any:
    return self._work(*args)


def harmful(told: object, original: Callable[..., Any], around: Any, *args: Any, **kw: Any) -> Any:
    return around(original, *args, **kw)


class TestItCanFail:
    """Without the guard, a fault is seen."""

    def test_with_it_there_is_nothing_to_see(self, known: Expected) -> None:
        assert found(known, "Calls.enter") == set()

    def test_a_fault_in_a_hook(self, known: Expected, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Hook, "__call__", unguarded)
        monkeypatch.setattr(guard, "_eager_hook", lambda: Hook)  # where torch._dynamo is loaded
        assert "reached" in found(known, "Calls.enter")

    def test_a_fault_in_a_patch(self, known: Expected, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(patching, "unharmed", harmful)
        assert "reached" in found(known, "BackwardPasses.around")

    def test_a_fault_that_nobody_tells(
        self, known: Expected, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Guard, "_keep", lambda *_: None)
        assert found(known, "Calls.enter") == {"unsaid"}

    def test_hooks_that_stay(self, known: Expected, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Handles, "remove", lambda _: None)
        assert "left" in found(known, "Calls.enter")


def test_places_are_found_and_not_listed(known: Expected) -> None:
    functions = {(place.file, place.function) for place in known.counted.calls}
    for file, function in (
        ("capture/recorder.py", "Recorder.value"),
        ("capture/weights.py", "WeightHooks._arrived"),
        ("trace/segment.py", "_write_all"),
        ("adapters/native/modules.py", "walk"),
    ):
        assert (file, function) in functions
    assert not {file for file, _ in functions} & {"capture/guard.py"}


def test_every_function_fails_at_its_first_its_second_and_its_last_call(known: Expected) -> None:
    ((place, calls),) = known.counted.calls.most_common(1)
    nths = {fault.nth for fault in faults(known.counted) if fault.place == place}
    assert {1, 2, calls} <= nths
    assert isinstance(place, Place)
