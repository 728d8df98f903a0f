"""The file that tells a reference in which blocks of samples its modules run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ttrace.core.door import from_dict, read_bounded
from ttrace.core.limits import PLAN_BYTES
from ttrace.core.plain import to_dict
from ttrace.core.refused import Refused
from ttrace.core.sample_blocks import SampleBlocks
from ttrace.errors import UsageError
from ttrace.trace.sealed import seal, unseal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    calls: tuple[SampleBlocks, ...]


def write_blocks(file: Path, calls: Iterable[SampleBlocks]) -> None:
    data = to_dict(_Written(calls=tuple(calls)))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(seal(data)[0])


def read_blocks(file: Path) -> tuple[SampleBlocks, ...]:
    try:
        return from_dict(_Written, unseal(read_bounded(file, PLAN_BYTES))[0]).calls
    except Refused as refused:
        raise UsageError(
            f"{file} does not tell blocks of samples: {refused}; `ttrace diff` writes such a file"
        ) from refused
