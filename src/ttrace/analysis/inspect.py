"""Looking into one trace: what it holds, one tensor put together, one tensor exported.

One that is kept as codes and scales is looked at and exported as both, the scales as one grid: that
of the largest blocks in which each has one scale, whatever blocks the ranks have.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ttrace.analysis.align import align_one
from ttrace.analysis.sources import Source, opened
from ttrace.core.door import to_dict
from ttrace.core.ids import TensorId
from ttrace.core.logical import LogicalTensor
from ttrace.core.quantised import KeptView, QuantisedForm, largest_code
from ttrace.core.record import Summary
from ttrace.core.statistics import Statistics
from ttrace.errors import CannotCompare, UsageError
from ttrace.measure.accumulator import Accumulator
from ttrace.trace.blocks import BlockReader, blocks, common_dtype
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.quantised import Aspect, codes_dtype, form_of, kept_records, reading
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader
from ttrace.trace.store import PathOrUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorView:
    """One logical tensor of a trace with the statistics of its values."""

    id: TensorId
    tensor: LogicalTensor
    statistics: Statistics | None  # None while parts are missing
    kept: KeptView | None = None  # where it is kept as codes and scales

    def to_json(self) -> dict[str, Any]:
        found = self.statistics
        return {
            "id": str(self.id),
            "shape": list(self.tensor.shape),
            "dtype": self.tensor.dtype,
            "norm": None if found is None else found.reference_norm,
            "nonfinite": None if found is None else found.nonfinite_reference,
            "pieces": [
                {
                    "ranks": list(piece.ranks),
                    "microbatches": sorted({record.microbatch for record in piece.records}),
                    "role": role,
                    "recompute": piece.recompute,
                    "layout": str(piece.layout),
                }
                for role, pieces in (
                    ("shard", self.tensor.pieces),
                    ("replica", self.tensor.replicas),
                )
                for piece in pieces
            ],
            "gaps": [str(gap) for gap in self.tensor.gaps],
            "notes": list(self.tensor.notes),
            "kept": None if self.kept is None else to_dict(self.kept),
        }


def describe(path: PathOrUrl | str) -> dict[str, Any]:
    """What is in a trace: ranks, steps, kinds, sizes, and what was not captured."""
    trace = Trace.open(path)
    info = next(iter(trace.ranks.values())).info
    return {
        "path": str(path),
        "world_size": trace.world_size,
        "missing_ranks": list(trace.missing_ranks),
        "unfinished_ranks": [
            r for r, found in sorted(trace.ranks.items()) if found.summary is None
        ],
        "steps": list(trace.steps),
        "adapter": info.adapter,
        "device": info.device,
        "noise_seed": info.noise_seed,
        "axes": {axis: size for axis, (_, size) in info.axes.items()},
        "versions": info.versions,
        "facts": info.facts,
        "modules": len(info.modules),
        "tensors": len(trace.by_id()),
        "kinds": dict(Counter(id_.kind.value for id_ in trace.by_id())),
        "size_bytes": _stored_bytes(trace),
        **_describe_capture([r.summary for r in trace.ranks.values() if r.summary is not None]),
        "notes": [note for rank in trace.ranks.values() for note in rank.notes],
        "ids": [str(id_) for id_ in trace.by_id()],
    }


def _stored_bytes(trace: Trace) -> int:
    """The bytes of all spans: several records may be of one."""
    spans = {(r.rank, r.location) for rank in trace.ranks.values() for r in rank.records}
    return sum(location.size_bytes for _, location in spans if location is not None)


def _describe_capture(summaries: Sequence[Summary]) -> dict[str, Any]:
    """What hooks saw on all ranks, and what they did not."""
    return {
        "hooks_expected": sum(s.hooks_expected for s in summaries),
        "hooks_fired": sum(s.hooks_fired for s in summaries),
        "unfired": sorted({id_ for s in summaries for id_ in s.unfired}),
        "never_called": sorted({path for s in summaries for path in s.never_called}),
        "faults": sorted({fault for s in summaries for fault in s.faults}),
    }


def view(path: PathOrUrl | str, name: str) -> TensorView:
    """One tensor of a trace, put together from its shards."""
    id_ = TensorId.parse(name)
    with opened(("trace", path)) as (source,):
        tensor = _find(source, id_)
        statistics, kept = None, None
        if not tensor.gaps:
            reader, whole, nonfinite = BlockReader(source.spans), Accumulator(), 0
            for start, stop in blocks(tensor.shape):
                values = reader.read(tensor.pieces, tensor.shape, start, stop)
                whole.update(values, values)
                nonfinite += int((~values.isfinite()).sum())
            kept = view_kept(tensor, source.spans)
            reader.finish(tensor)
            # Against itself an infinity is no difference.
            statistics = replace(whole.result(), nonfinite_reference=nonfinite)
    return TensorView(id=id_, tensor=tensor, statistics=statistics, kept=kept)


def export(path: PathOrUrl | str, name: str, file: Path) -> dict[str, Any]:
    """Write one logical tensor as a safetensors file under its id.

    Codes and scales of one that is kept so are beside its values, as ID.codes and ID.scales.
    """
    id_ = TensorId.parse(name)
    name = str(id_)
    if file.exists():
        raise UsageError(f"{file} exists: choose another name, or remove it")
    with opened(("trace", path)) as (source,):
        tensor = _find(source, id_)
        if tensor.gaps:
            raise CannotCompare(
                f"{name} is not complete in {path}: no rank holds {tensor.gaps[0]}; "
                "`ttrace show` draws the map of its shards"
            )
        reader = BlockReader(source.spans)
        dtype = common_dtype(tensor.pieces)
        whole = _whole(tensor, reader, dtype)
        kept = read_kept(tensor, source.spans)
        reader.finish(tensor)
    parts = {} if kept is None else {f"{name}.{part}": t for part, t in kept._asdict().items()}
    try:
        save_file({name: whole, **parts}, file)
    except SafetensorError as error:
        raise UsageError(f"cannot write {file}: {error}; choose another place") from error
    return {
        "id": name,
        "file": str(file),
        "shape": list(tensor.shape),
        "dtype": dtype_name(dtype),
        "beside": list(parts),
    }


def _find(source: Source, id_: TensorId) -> LogicalTensor:
    trace = source.trace
    records = trace.by_id().get(id_)
    if records is None:
        near = [str(other) for other in trace.by_id() if other.module == id_.module][:5]
        hint = f"of this module it has {', '.join(near)}" if near else "`ttrace show` lists its ids"
        raise UsageError(f"{trace.path} has no tensor {id_}; {hint}")
    if all(record.location is None for record in records):
        raise UsageError(f"{id_} is the same tensor as {records[0].same_as}: ask for that")
    tensor = align_one(source)[id_]
    if isinstance(tensor, str):
        raise CannotCompare(f"{id_} cannot be put together: {tensor}")
    return tensor


_ASPECTS = (Aspect.CODES, Aspect.SCALES)


class KeptTensors(NamedTuple):
    """Codes as the numbers that they are, and a scale for each block."""

    codes: Tensor
    scales: Tensor


def view_kept(tensor: LogicalTensor, spans: SpanReader) -> KeptView | None:
    """None where it is not kept so everywhere, or in several formats."""
    form = _common_form(tensor)
    if form is None or not tensor.volume:
        return None
    codes_of, scales_of = (BlockReader(spans, reading(each)) for each in _ASPECTS)
    top = largest_code(form.codes)
    zeros, largest, low, high = 0, 0, math.inf, -math.inf
    for start, stop in blocks(tensor.shape):
        codes = codes_of.read(tensor.pieces, tensor.shape, start, stop)
        scales = scales_of.read(tensor.pieces, tensor.shape, start, stop)
        zeros += int((codes == 0).sum())
        largest += int((codes.abs() >= top).sum())
        low, high = min(low, float(scales.min())), max(high, float(scales.max()))
    return KeptView(
        codes=form.codes,
        scales=form.scales,
        block=common_block(tensor),
        zeros=zeros,
        largest=largest,
        lowest_scale=low,
        highest_scale=high,
    )


def read_kept(tensor: LogicalTensor, spans: SpanReader) -> KeptTensors | None:
    """All codes and scales, where they are of one format."""
    form = _common_form(tensor)
    if form is None:
        return None
    readers = (BlockReader(spans, reading(each)) for each in _ASPECTS)
    codes, scales = (_whole(tensor, reader, torch.float32) for reader in readers)
    steps = tuple(slice(None, None, size) for size in common_block(tensor))
    return KeptTensors(codes=codes.to(codes_dtype(form)), scales=scales[steps].clone())


def common_block(tensor: LogicalTensor) -> tuple[int, ...]:
    """The largest block whose edges, repeated, are at those of all ranks' blocks."""
    return tuple(_common_size(tensor, dim) or max(1, s) for dim, s in enumerate(tensor.shape))


def _common_size(tensor: LogicalTensor, dim: int) -> int:
    """0 where no scale ends inside of this dim."""
    size = 0
    for piece, record in zip(tensor.pieces, kept_records(tensor), strict=True):
        block, held, offset = form_of(record).block[dim], record.shape[dim], 0
        for run in piece.layout.runs[dim]:
            if run.start is not None:
                size = math.gcd(size, run.start)
                size = math.gcd(size, block, offset) if block < held else size
            offset += run.length
    return size


def _common_form(tensor: LogicalTensor) -> QuantisedForm | None:
    forms = [form_of(record) for record in kept_records(tensor)]
    return forms[0] if len({(form.codes, form.scales) for form in forms}) == 1 else None


def _whole(tensor: LogicalTensor, reader: BlockReader, dtype: torch.dtype) -> Tensor:
    whole = torch.empty(math.prod(tensor.shape), dtype=dtype).reshape(tensor.shape)
    for start, stop in blocks(tensor.shape):
        box = tuple(slice(low, high) for low, high in zip(start, stop, strict=True))
        whole[box] = reader.read(tensor.pieces, tensor.shape, start, stop)
    return whole
