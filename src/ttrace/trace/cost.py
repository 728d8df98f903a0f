"""What recording cost a run, by the last lines of its journals and the sizes of its files."""

from __future__ import annotations

import math
from typing import Any

from ttrace.core.cost import RecordingCost
from ttrace.errors import TraceError
from ttrace.trace.files import files_of, rank_names
from ttrace.trace.progress import journal_end
from ttrace.trace.store import PathOrUrl


def cost_of(folder: PathOrUrl) -> RecordingCost | None:
    """None while a rank has not ended its trace, or where it cannot be read."""
    try:
        files = files_of(folder)
        ends = [journal_end(files, rank) for rank in rank_names(files)]
        size_bytes = files.segments_bytes()
    except (TraceError, OSError, ValueError):  # whoever reads the trace says what is wrong with it
        return None
    if not ends or not all(isinstance(end, dict) for end in ends):
        return None
    return RecordingCost(
        size_bytes=size_bytes,
        steps=int(min(_number(end, "steps") for end in ends)),
        step_seconds=max(_number(end, "seconds") for end in ends),
        hook_seconds=max(_number(end, "recording_seconds") for end in ends),
    )


def _number(end: dict[str, Any], name: str) -> float:
    value = end.get(name)
    is_number = type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    return float(value) if is_number else 0.0  # type: ignore[arg-type]
