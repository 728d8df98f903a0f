"""Installs the build of torch that fits this machine: the CPU one where there is no NVIDIA GPU.

    python install_torch.py .venv/bin/python -c constraints.txt

The CUDA build brings several gigabytes of libraries that a machine without a GPU never loads. pip
alone takes whatever its index offers first, which on Linux is that build. So pip is asked what it
would take; if that is a CUDA build and there is no GPU, uv installs it instead, which knows where
the CPU builds are. Where pip's own choice is a CPU build already (macOS, an index that somebody
configured, a wheel at hand), it stays.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

# What torch and its dependencies take on disk; measured for the CPU build, and rounded up.
CPU_BYTES, CUDA_BYTES = 1_200_000_000, 8_000_000_000
_CUDA = re.compile(r"^(nvidia|cuda|triton)[-_]", re.IGNORECASE)


def needs_cuda(report: dict[str, Any]) -> bool:
    """Whether the build that pip would install depends on libraries for GPUs."""
    names = [item["metadata"]["name"] for item in report["install"]]
    return any(_CUDA.match(name) for name in names)


def choose_command(python: str, constraints: list[str], *, pip_takes_cuda: bool) -> list[str]:
    """The command that installs torch: pip's own choice, or the CPU build by uv."""
    if not pip_takes_cuda or has_gpu():
        return [python, "-m", "pip", "install", "--quiet", *constraints, "torch"]
    backend = ["--torch-backend", "cpu"]
    return [
        python,
        "-m",
        "uv",
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        *backend,
        *constraints,
        "torch",
    ]


def has_gpu() -> bool:
    """Whether the driver of an NVIDIA GPU answers."""
    command = shutil.which("nvidia-smi")
    return (
        command is not None and subprocess.run([command, "-L"], capture_output=True).returncode == 0
    )


def complaint(error: str, python: str, needed: int) -> str:
    """Say what stopped the installation, what it needs, and what to do."""
    free = shutil.disk_usage(Path(python).parent).free
    if "No space left" in error or free < needed:
        return (
            f"torch needs {needed / 1e9:.1f} GB of disk here, found {free / 1e9:.1f} GB free: make "
            "room, or move this clone to another disk"
        )
    last = error.strip().splitlines()[-1] if error.strip() else "it said nothing"
    return (
        f"torch could not be installed ({last}): it is downloaded from a package index, so this "
        "machine needs a network, or an index that pip is configured for; then run make again"
    )


def _run(command: list[str], python: str, needed: int) -> str:
    """What a command printed; the end of this program where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(complaint(done.stderr, python, needed))
    return done.stdout


def main(python: str, *constraints: str) -> None:
    probe = [python, "-c", "import torch; print(torch.__version__)"]
    if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        return  # torch is there; whoever put it there chose it
    if shutil.disk_usage(Path(python).parent).free < CPU_BYTES:
        raise SystemExit(complaint("", python, CPU_BYTES))
    asked = ["--quiet", "--dry-run", "--ignore-installed", "--report", "-", *constraints, "torch"]
    report = json.loads(_run([python, "-m", "pip", "install", *asked], python, CPU_BYTES))
    takes_cuda = needs_cuda(report)
    if takes_cuda and not has_gpu():
        _run([python, "-m", "pip", "install", "--quiet", "uv"], python, CPU_BYTES)
    needed = CUDA_BYTES if takes_cuda and has_gpu() else CPU_BYTES
    _run(choose_command(python, list(constraints), pip_takes_cuda=takes_cuda), python, needed)


if __name__ == "__main__":
    main(*sys.argv[1:])
