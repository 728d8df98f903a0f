"""Small files that ask for much: refused in seconds, within the memory that limits.py states."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attacks.forging import Forged
from attacks.fuzz.base import Base, make
from ttrace.analysis import inspect as inspection
from ttrace.analysis.check import check
from ttrace.core.limits import MEMORY_BYTES, RESULT_BYTES
from ttrace.errors import TTraceError
from ttrace.report.json_file import read_result

pytestmark = pytest.mark.flow

# Far below the stated limit: none of these is a file that a run could have written.
_SMALL_BYTES = 512 << 20
_MOST_SECONDS = 20.0


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return make(tmp_path)


def spent(work: Callable[[], object]) -> int:
    """The memory that it takes; it must end in time, by a refusal."""

    def measured(sending: Any) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            work()
            told = "nothing was refused"
        except TTraceError:
            told = ""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sending.send((told, (peak - before) << 10))

    receiving, sending = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=measured, args=(sending,))
    started = time.monotonic()
    process.start()
    try:
        assert receiving.poll(_MOST_SECONDS), f"it takes more than {_MOST_SECONDS} s"
        told, size = receiving.recv()
    finally:
        process.kill()
        process.join()
    assert not told
    assert time.monotonic() - started < _MOST_SECONDS
    return int(size)


def forged(base: Base) -> Forged:
    return Forged(base.trace("candidate") / "rank-00000")


def checked(base: Base) -> Callable[[], object]:
    return lambda: check(base.trace("reference"), base.trace("candidate")).raise_for_outcome()


def parameter(base: Base, **changes: Any) -> None:
    """Change the record of the parameter, whose layout is known."""
    found = forged(base)
    record = next(each for each in found.records if each["id"] == "step0/a:param.weight")
    record.update(changes)
    found.write()


@pytest.mark.parametrize(
    "layout",
    [
        {"shape": [1 << 40, 6], "runs": [[[0, 3]], [[0, 6]]], "partial": []},
        {"shape": [2] * 40 + [3, 6], "runs": [[[0, 1]]] * 40 + [[[0, 3]], [[0, 6]]], "partial": []},
        {"shape": [1 << 30, 1 << 30], "runs": [[[0, 3]], [[0, 6]]], "partial": []},
    ],
    ids=["long", "deep", "wide"],
)
def test_layout_of_a_tensor_that_is_not_there(base: Base, layout: dict[str, Any]) -> None:
    changes = {"shape": [1] * 40 + [3, 6]} if len(layout["shape"]) > 2 else {}
    parameter(base, layout=layout, **changes)
    assert spent(checked(base)) < _SMALL_BYTES


def test_runs_that_cut_a_tensor_into_too_many_cells(base: Base) -> None:
    runs = [[[2 * index, 1] for index in range(3)], [[7 * index, 1] for index in range(6)]]
    parameter(base, layout={"shape": [4000, 4000], "runs": runs, "partial": []})
    assert spent(checked(base)) < _SMALL_BYTES


def test_world_of_millions(base: Base) -> None:
    found = forged(base)
    found.manifest["world_size"] = 1 << 24
    found.write()
    assert spent(checked(base)) < _SMALL_BYTES
    assert spent(lambda: inspection.describe(base.trace("candidate"))) < _SMALL_BYTES


def test_sparse_journal(base: Base) -> None:
    os.truncate(base.trace("candidate") / "rank-00000" / "journal.jsonl", 3 << 30)
    assert spent(checked(base)) < _SMALL_BYTES


def test_journal_line_without_an_end(base: Base) -> None:
    file = base.trace("candidate") / "rank-00000" / "journal.jsonl"
    os.truncate(file, 200 << 20)
    assert spent(checked(base)) < _SMALL_BYTES


@pytest.mark.parametrize("name", ["manifest.json", "journal.jsonl"])
def test_nesting_without_an_end(base: Base, name: str) -> None:
    file = base.trace("candidate") / "rank-00000" / name
    file.write_bytes(b"[" * (10 << 20) + b"\n")
    assert spent(checked(base)) < _SMALL_BYTES


def test_sparse_manifest(base: Base) -> None:
    os.truncate(base.trace("candidate") / "rank-00000" / "manifest.json", 3 << 30)
    assert spent(checked(base)) < _SMALL_BYTES


def test_sparse_result(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text("{}")
    os.truncate(file, 3 << 30)
    assert spent(lambda: read_result(file)) < _SMALL_BYTES


def test_largest_result_that_is_read_fits_into_the_stated_memory(tmp_path: Path) -> None:
    """Numbers in lists are what takes most memory for its text."""
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"schema": 5, "tensors": [[0.5] * 1000] * 2_000}))
    share = file.stat().st_size
    taken = spent(lambda: read_result(file))
    assert taken / share * RESULT_BYTES < MEMORY_BYTES
