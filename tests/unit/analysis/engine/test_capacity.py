"""How many workers there are: as many as cores, unless the group or the memory allows fewer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ttrace.analysis.engine import capacity
from ttrace.analysis.engine.capacity import cores, free_bytes, room_for_workers

GIGABYTE = 1 << 30


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """16 cores, and memory as files say."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(capacity, "_CGROUP", tmp_path)
    monkeypatch.setattr(capacity, "_MEMINFO", tmp_path / "meminfo")
    return tmp_path


def put(folder: Path, **files: str) -> None:
    for name, text in files.items():
        file = folder / name.replace("__", "/").replace("_of_", ".")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text + "\n")


def test_all_cores_where_nothing_is_said_of_limits(machine: Path) -> None:
    assert (cores(), free_bytes(), room_for_workers()) == (16, None, 16)


def test_a_control_group_pays_for_fewer(machine: Path) -> None:
    put(machine, cpu_of_max="350000 100000")
    assert cores() == 4
    put(machine, cpu_of_max="max 100000")
    assert cores() == 16
    put(machine, cpu_of_max="1000 100000")
    assert cores() == 1


def test_a_control_group_of_the_older_version(machine: Path) -> None:
    put(machine, cpu__cpu_of_cfs_quota_us="200000", cpu__cpu_of_cfs_period_us="100000")
    assert cores() == 2
    put(machine, cpu__cpu_of_cfs_quota_us="-1")
    assert cores() == 16


def test_memory_limits_workers_and_one_is_left(machine: Path) -> None:
    put(machine, meminfo="MemTotal: 99 kB\nMemAvailable: 4194304 kB")
    assert (free_bytes(), room_for_workers()) == (4 * GIGABYTE, 8)
    put(machine, memory_of_max=str(3 * GIGABYTE), memory_of_current=str(2 * GIGABYTE))
    assert (free_bytes(), room_for_workers()) == (GIGABYTE, 2)
    put(machine, memory_of_current=str(4 * GIGABYTE))
    assert (free_bytes(), room_for_workers()) == (0, 1)


def test_files_that_say_something_else_say_nothing(machine: Path) -> None:
    put(machine, meminfo="nothing", cpu_of_max="soon", memory_of_max="max", memory_of_current="1")
    assert (cores(), free_bytes()) == (16, None)
