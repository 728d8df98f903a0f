"""Which build of torch a fresh clone gets, and what is said where it cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

import install_torch
from install_torch import choose_command, complaint, needs_cuda


def report(*names: str) -> dict[str, object]:
    return {"install": [{"metadata": {"name": name}} for name in names]}


@pytest.mark.parametrize(
    ("names", "cuda"),
    [
        (("torch", "sympy", "networkx"), False),
        (("torch", "sympy", "nvidia-cublas"), True),
        (("torch", "triton-windows"), True),
        (("torch", "cuda-bindings"), True),
    ],
)
def test_a_build_is_told_by_what_it_depends_on(names: tuple[str, ...], cuda: bool) -> None:
    assert needs_cuda(report(*names)) is cuda


@pytest.mark.parametrize(
    ("takes_cuda", "gpu", "by"),
    [(False, False, "pip"), (False, True, "pip"), (True, True, "pip"), (True, False, "uv")],
)
def test_only_a_cuda_build_without_a_gpu_is_replaced(
    takes_cuda: bool, gpu: bool, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install_torch, "has_gpu", lambda: gpu)
    command = choose_command("python", ["-c", "constraints.txt"], pip_takes_cuda=takes_cuda)
    assert command[2] == by
    assert ("cpu" in command) == (by == "uv")
    assert command[-3:] == ["-c", "constraints.txt", "torch"]


def test_what_is_missing_is_said_with_what_to_do(tmp_path: Path) -> None:
    python = str(tmp_path / "python")
    network = complaint("x\nERROR: No matching distribution found for torch", python, 1)
    assert "No matching distribution found" in network
    assert "needs a network" in network
    assert "make room" in complaint("OSError: No space left on device", python, 1)
    assert "make room" in complaint("", python, 10**18)
