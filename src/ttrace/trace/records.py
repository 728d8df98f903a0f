"""Records of the lines of journals, and what they must be beyond the types of their fields.

Enters: the text of a record as the journal has it, and what came before it. Leaves: the record;
Refused says which of its fields do not fit together. What passed here is trusted by all stages.
Ranks that hold the same part of a tensor write the same line but for the place of its bytes: such
lines are read once.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Container

from ttrace.core.door import from_dict, parse_json
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout, Runs
from ttrace.core.limits import ELEMENTS
from ttrace.core.record import SEGMENT, Location, RankInfo, Record
from ttrace.core.refused import InWords, Refused
from ttrace.trace.dtypes import is_readable
from ttrace.trace.payloads import payload_of

# The place of a record's bytes as the writer puts it, between the same text before and after.
_PLACE = re.compile(
    rb',"at":\["(%s)",(0|[1-9][0-9]{0,17}),(0|[1-9][0-9]{0,17}),"([0-9a-f]{16})"\]'
    % SEGMENT.encode()
)


class RecordLines:
    """Makes records of the lines of all ranks of a trace."""

    def __init__(self) -> None:
        self._known: dict[bytes, Record] = {}  # by their text without the place of their bytes
        self._segments: dict[bytes, str] = {}

    def record(self, text: bytes, info: RankInfo, earlier: Container[TensorId]) -> Record:
        """The record of a rank; `earlier` are the ids of those before it."""
        match = _PLACE.search(text)
        if match is None:
            return _sound(text, info, earlier)
        around = text[: match.start()] + b"\0" + text[match.end() :]
        place, known = self._place(match), self._known.get(around)
        if known is None:
            record = _sound(text, info, earlier)
            if record.location == place:  # and no other part of the line looks like a place
                self._known[around] = record
            return record
        record = known.of_rank(info.rank, place)
        if not _is_sound_like(known, record, earlier):
            require_sound(record, info, earlier)
        return record

    def _place(self, match: re.Match[bytes]) -> Location:
        segment, offset, size_bytes, digest = match.groups()
        name = self._segments.setdefault(segment, segment.decode("ascii"))
        return Location(
            segment=name,
            offset=int(offset),
            size_bytes=int(size_bytes),
            xxh3=digest.decode("ascii"),
        )


def _sound(text: bytes, info: RankInfo, earlier: Container[TensorId]) -> Record:
    record = from_dict(Record, parse_json(text), rank=info.rank)
    require_sound(record, info, earlier)
    return record


def _is_sound_like(known: Record, record: Record, earlier: Container[TensorId]) -> bool:
    """Whether nothing that may differ between two lines that are alike makes it unsound."""
    assert known.location is not None
    assert record.location is not None
    return (
        record.location.size_bytes == known.location.size_bytes
        and record.origin is None  # a number of a rank
        and (record.same_as is None or record.same_as in earlier)
    )


def require_sound(record: Record, info: RankInfo, earlier: Container[TensorId]) -> None:
    """Refuse a record of this rank that contradicts itself, or those before it."""
    if not is_readable(record.dtype):
        raise Refused(record.dtype, "a dtype of this torch whose values are numbers", "dtype")
    _require_size(record.shape, "shape")
    if record.origin is not None and record.origin >= info.world_size:
        raise Refused(record.origin, f"one of {info.world_size} ranks", "origin")
    if record.layout is not None:
        _require_layout(record.layout, record.shape)
    logical = record.shape if record.layout is None else record.layout.shape
    if record.batch_dim is not None and record.batch_dim >= max(1, len(logical)):
        raise Refused(record.batch_dim, f"one of {len(logical)} dims", "batch_dim")
    if record.location is None:
        if record.same_as is None or not record.id.kind.is_gradient_of_activation:
            place = "the place of its bytes; only a gradient may be stored with another"
            raise Refused(InWords("nothing"), place, "at")
        return
    if record.same_as is not None and record.same_as not in earlier:
        raise Refused(str(record.same_as), "the id of an earlier record", "same_as")
    try:
        expected = payload_of(record).size_bytes(record)
    except (ValueError, LookupError, TypeError) as error:  # of a payload that trusts its numbers
        raise Refused(InWords(str(error)), "parameters of this payload", "payload") from None
    if record.location.size_bytes != expected:
        raise Refused(
            record.location.size_bytes,
            f"{expected} bytes for {record.dtype} {list(record.shape)}",
            "at.size_bytes",
        )


def _require_layout(layout: Layout, local: tuple[int, ...]) -> None:
    _require_size(layout.shape, "layout.shape")
    if layout.local_shape != local:
        raise Refused(
            InWords(f"{layout}, a part of shape {list(layout.local_shape)}"),
            f"one of {list(local)}, as the tensor has",
            "layout",
        )
    for dim, runs in enumerate(layout.runs):
        if len(runs) > 1 and _meets_itself(runs):
            raise Refused(
                InWords("indices that come twice"), "each index once", f"layout.runs[{dim}]"
            )


def _meets_itself(runs: Runs) -> bool:
    ordered = sorted((run.start, run.start + run.length) for run in runs if run.start is not None)
    return any(stop > start for (_, stop), (start, _) in itertools.pairwise(ordered))


def _require_size(shape: tuple[int, ...], where: str) -> None:
    if math.prod(max(1, size) for size in shape) > ELEMENTS:
        raise Refused(list(shape), f"at most {ELEMENTS:,} elements", where)
