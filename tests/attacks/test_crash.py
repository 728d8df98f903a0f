"""A short version of `make crash`: points that once went wrong, and a sample of all."""

from __future__ import annotations

from typing import Any

import pytest

from attacks.crash.__main__ import attack, points
from attacks.crash.disk import Call, Fault
from attacks.crash.points import Point, recorded_calls, run_point
from ttrace.trace.writer import TraceWriter

pytestmark = pytest.mark.flow


def once_wrong(at: int, call: Call) -> list[Point]:
    found = []
    if at < 9:  # it died before it had a manifest, and could not go on
        found.append(Point(at, Fault.KILLED_BEFORE))
    if call.name == "write" and at > 9:  # a torn line could not be cut off, and others followed it
        found.append(Point(at, Fault.BROKEN_TWICE))
    if call.name == "pwrite" and call.size > 1000:  # the header of a segment was half written
        found.append(Point(at, Fault.SHORT))
    return found


def require_right(chosen: list[Point]) -> None:
    found = attack(chosen, 1)
    assert {point: ran.wrong for point, ran in found.items() if ran.wrong} == {}
    assert sum(ran.acknowledged for ran in found.values()) > 10 * len(chosen)


def test_what_once_went_wrong() -> None:
    chosen = [point for at, call in enumerate(recorded_calls()) for point in once_wrong(at, call)]
    assert len(chosen) > 30
    require_right(chosen)


def test_a_sample() -> None:
    pairs = [point for point in points(1000, seed=1) if point.then]
    assert len(pairs) > 100
    require_right(points(25, seed=1) + pairs[:15])


class TestHarness:
    """The companions: writers that break their word are found."""

    def test_finds_records_that_were_acknowledged_too_early(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append = TraceWriter._append
        held: list[Any] = []

        def late(writer: TraceWriter, *values: tuple[str, dict[str, Any]]) -> None:
            held.extend(values)
            if values[-1][0] == "r":
                return
            while held:
                append(writer, held.pop(0))

        monkeypatch.setattr(TraceWriter, "_append", late)
        wrong = run_point(Point(20, Fault.KILLED_BEFORE)).wrong
        assert any("was written and is lost" in what for what in wrong), wrong

    def test_finds_other_values(self, monkeypatch: pytest.MonkeyPatch) -> None:
        write = TraceWriter.write

        def zeros(writer: TraceWriter, record: Any, tensor: Any) -> Any:
            return write(writer, record, tensor.clone().zero_())

        monkeypatch.setattr(TraceWriter, "write", zeros)
        wrong = run_point(Point(40, Fault.KILLED_BEFORE)).wrong
        assert any("has other values" in what for what in wrong), wrong

    def test_finds_steps_that_are_not_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TraceWriter, "end_step", lambda *_: None)
        wrong = run_point(Point(40, Fault.KILLED_BEFORE)).wrong
        assert "step 0 had ended and was not kept" in wrong
