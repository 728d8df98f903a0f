"""The traces and the command that parts about engines share.

Enters: whether the candidate is right. Leaves: traces in a folder that is removed at the end, and
`ttrace check` of them as people run it, with its result. The perturbed reference is given several
times, so that far more is measured than lies on disk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.check import write_traces

TENSORS = 20
TENSOR_BYTES = 64_000_000  # chosen: four gigabytes on disk, of three traces
PERTURBED = 192  # chosen: what workers take to start counts little beside a check of half a minute
_ROW_BYTES = 2 * 8192  # as benchmarks/check.py writes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Traces in a folder."""

    folder: Path
    stored_bytes: int
    perturbed: int  # so often the perturbed reference is given

    @property
    def read_bytes(self) -> int:
        """The reference is read with every other run."""
        return self.stored_bytes // 3 * 2 * (self.perturbed + 1)

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.rglob("*.safetensors"))

    def command(self, name: str, *options: str) -> list[str]:
        perturbed = ["--perturbed", str(self.folder / "perturbed")] * self.perturbed
        return [
            *(sys.executable, "-m", "ttrace", "check"),
            *(str(self.folder / "reference"), str(self.folder / "candidate"), *perturbed),
            *("--json", str(self.folder / f"{name}.json"), *options),
        ]

    def result(self, name: str) -> dict[str, Any]:
        """Without the command that made it."""
        found = json.loads((self.folder / f"{name}.json").read_text())
        return {key: value for key, value in found.items() if key != "command"}


@contextmanager
def case(*, is_right: bool, tensors: int = TENSORS, perturbed: int = PERTURBED) -> Iterator[Case]:
    """Of a candidate that is right, or of one with a wrong shard in every tensor."""
    with tempfile.TemporaryDirectory(prefix="scale-") as name:
        sizes = [TENSOR_BYTES // _ROW_BYTES] * tensors
        stored = write_traces(Path(name), sizes, error=0.0 if is_right else 0.5)
        yield Case(folder=Path(name), stored_bytes=stored, perturbed=perturbed)


def run(command: list[str], *, code: int) -> None:
    done = subprocess.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != code:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}, expected {code}")
