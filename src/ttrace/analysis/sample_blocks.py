"""Which samples the candidate quantises together, where that is fewer than the reference does.

A scale that is made from a whole tensor is another one where a rank, or a microbatch, holds fewer
samples. Both are right, and no rounding explains the difference: codes differ everywhere. So the
reference is run again, with the calls of modules that quantise cut into the candidate's blocks.

Enters: a reference, a candidate, and which modules quantise, as a perturbed run tells. Leaves: how
their calls are to be cut. It must not know how that is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ttrace.analysis.align import Aligned, Aligner
from ttrace.analysis.sources import Source, opened
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout, Run, Runs, normalise
from ttrace.core.logical import Alignment, LogicalTensor
from ttrace.trace.plan import SampleBlocks
from ttrace.trace.reader import Trace
from ttrace.trace.store import PathOrUrl


def quantising_modules(perturbed: PathOrUrl) -> tuple[str, ...]:
    """The modules in whose calls codes were made, in a run that looked for them."""
    return tuple(Trace.open(perturbed).codes or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """How calls are to be cut, and modules that quantise where no call can be."""

    calls: tuple[SampleBlocks, ...] = ()
    uncut: tuple[str, ...] = ()


def sample_blocks(reference: PathOrUrl, candidate: PathOrUrl, quantising: Sequence[str]) -> Found:
    """Nothing where the candidate has as many samples at once as the reference."""
    if not quantising:
        return Found()
    with opened(("reference", reference), ("candidate", candidate)) as (whole, cut):
        aligned = Aligner(whole).align(cut)
        outers = _outers(aligned)
        by_id = {alignment.id: alignment for alignment in aligned.tensors}
        called = whole.called
        calls: list[SampleBlocks] = []
        uncut: list[str] = []
        for path in quantising:
            found = list(_of_module(path, (whole, cut), by_id, outers))
            if not found:
                continue
            if not path or any(other.startswith(f"{path}.") for other in called):
                uncut.append(path)  # modules inside of it would be called once for each block
            else:
                calls += found
    return Found(calls=tuple(calls), uncut=tuple(uncut))


def _outers(aligned: Aligned) -> Mapping[TensorId, list[Layout]]:
    """The parts of each tensor that the microbatches of the candidate's ranks hold."""
    found: dict[TensorId, dict[Layout, None]] = {}
    for (id_, *_), position in aligned.positions.items():
        found.setdefault(id_, {})[position.outer] = None
    return {id_: list(layouts) for id_, layouts in found.items()}


def _of_module(
    path: str,
    sides: Sequence[Source],
    by_id: Mapping[TensorId, Alignment],
    outers: Mapping[TensorId, list[Layout]],
) -> Iterator[SampleBlocks]:
    """By the first tensor that it takes in the first step."""
    reference = sides[0].trace
    taken = min(
        (id_ for id_ in reference.by_id() if id_.module == path and id_.kind is Kind.INPUT),
        key=lambda id_: (id_.step, id_.apart, id_.call, id_.slot),
        default=None,
    )
    if taken is None:
        return
    names = [taken, *(source for side in sides if (source := _stored_as(side.trace, taken)))]
    for id_ in names:
        alignment = by_id.get(id_)
        if alignment is not None and alignment.reference is not None and id_ in outers:
            yield from _of_tensor(path, alignment.reference, outers[id_])
            return


def _stored_as(trace: Trace, id_: TensorId) -> TensorId | None:
    """Under which id a tensor was stored that a module was given as it was."""
    records = trace.by_id().get(id_)
    same = (example.same_as for example in records.examples()) if records else ()
    return next((each for each in same if each is not None), None)


def _of_tensor(
    path: str, reference: LogicalTensor, parts: Sequence[Layout]
) -> Iterator[SampleBlocks]:
    # An input [8, 64]; two ranks of the candidate hold [0:4, :] and [4:8, :]
    #     reference [0:8, :] on rank 0     dim 0 in blocks [0:4] and [4:8]
    #     reference [4:8, :] on rank 1     nothing: one block is all that it has
    #     parts cut along dims 0 and 1     nothing: a call is cut along one dim
    dims = {
        dim
        for part in parts
        for dim, (runs, full) in enumerate(
            zip(part.runs, Layout.full(part.shape).runs, strict=True)
        )
        if runs != full
    }
    if len(dims) != 1 or any(part.shape != reference.shape for part in parts):
        return
    (dim,) = dims
    for piece in reference.pieces:
        blocks = tuple(filter(None, (_local(piece.layout, dim, part.runs[dim]) for part in parts)))
        size = piece.layout.local_shape[dim]
        if len(blocks) > 1 and sum(run.length for runs in blocks for run in runs) == size:
            for record in piece.records:
                yield SampleBlocks(
                    module=path,
                    rank=record.rank,
                    microbatch=record.microbatch,
                    dim=dim,
                    blocks=blocks,
                )


def _local(layout: Layout, dim: int, wanted: Runs) -> Runs:
    """Where a rank holds these indices."""
    low, high = [0] * len(layout.shape), list(layout.shape)
    found: list[Run] = []
    for run in wanted:
        if run.start is not None:
            low[dim], high[dim] = run.start, run.start + run.length
            found += [
                Run(local.start, local.stop - local.start)
                for local, _ in layout.meets(low, high)[dim]
            ]
    return normalise(found)
