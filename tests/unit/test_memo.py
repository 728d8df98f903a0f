"""What was made once is found by every process, and a process that is forked holds no lock."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from zoo.memo import Memo, forget_others, spelled


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Case:
    colour: Colour
    parts: frozenset[str]


def write(folder: Path) -> None:
    (folder / "made").write_text("once")


def test_it_is_made_once_for_each_key(tmp_path: Path) -> None:
    memo, made = Memo(tmp_path), []
    first, again, other = (
        memo.made(("key", n), lambda folder: made.append(folder)) for n in (1, 1, 2)
    )
    assert first == again != other
    assert len(made) == 2


def test_what_failed_is_made_again(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        write(folder)
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        Memo(tmp_path).made("key", fail)
    assert (Memo(tmp_path).made("key", write) / "made").read_text() == "once"
    assert len(list(tmp_path.iterdir())) == 2  # the folder and its lock


@pytest.mark.flow
def test_a_process_that_is_forked_meanwhile_holds_no_lock(tmp_path: Path) -> None:
    children: list[int] = []

    def fork(_: Path) -> None:
        children.append(os.fork())
        if not children[-1]:
            signal.pause()

    try:
        Memo(tmp_path).made("key", fork)
        signal.alarm(20)  # instead of waiting for ever
        Memo(tmp_path).made("key", write)
        signal.alarm(0)
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)


def test_equal_values_are_spelled_alike_in_every_order() -> None:
    one = Case(Colour.RED, frozenset(["a", "b", "c"]))
    other = Case(Colour.RED, frozenset(["c", "b", "a"]))
    assert spelled(one) == spelled(other) == "Case(colour=Colour.RED, parts={'a', 'b', 'c'})"
    assert spelled({"b": (1, None), "a": write}).startswith("{'a': ")
    with pytest.raises(TypeError, match="plain values"):
        spelled(object())


def test_only_what_is_made_from_the_same_sources_is_kept(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name / "key").mkdir(parents=True)
    forget_others(tmp_path, kept="new")
    assert [folder.name for folder in tmp_path.iterdir()] == ["new"]
