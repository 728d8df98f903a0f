"""What perturbed references of one comparison have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ttrace.errors import TTraceError
from ttrace.trace.reader import devices_of


@dataclass(frozen=True, slots=True)
class Noisy:
    """What is common to the perturbed references of one comparison."""

    name: str
    plan: Path | None = None
    other_kernels: bool = False
    recorded: Mapping[str, Any] = field(default_factory=dict)  # what, as settings say it


def devices_differ(reference: Path, candidate: Path) -> bool:
    try:
        return devices_of(reference) != devices_of(candidate)
    except TTraceError:
        return False  # a trace that cannot be read is told of when it is compared
