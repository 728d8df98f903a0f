"""The reference once more, with scales of as many samples as the candidate quantises at once.

    FOLDER/in-blocks/blocks.json      how calls of which modules are cut
                     reference        the reference, cut so
                     perturbed-1 ...  the same with noise

Data-parallel ranks that quantise dynamically have scales of their own samples, a reference on one
rank has scales of all. Both are right. Or ranks agree on their scales, and are as the reference is.
Nothing says which of the two is meant: so both are compared, and what is closer is reported, with
a note of which it was.

Enters: a comparison, and runs that can be made. Leaves: the comparison that is reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ttrace.analysis.sample_blocks import quantising_modules, sample_blocks
from ttrace.core.finding import Note, Topic
from ttrace.core.results import CheckResult, Outcome
from ttrace.errors import CommandFailed, TTraceError
from ttrace.lab.series import Noisy, Series, stands_without
from ttrace.trace.plan import SampleBlocks, write_blocks

_FOLDER, _FILE = "in-blocks", "blocks.json"
# Chosen: where both are as near, the reference counts as it was made; other scales give other codes
# everywhere, which is far more.
_CLOSER = 0.95
_ROUNDING = 4.0  # chosen, in eps: below that errors are not compared


def cut_file_of(result: CheckResult) -> Path | None:
    """The file by which the reference of a comparison was cut, where it was."""
    file = Path(result.reference).parent / _FILE
    return file if file.is_file() else None


def closest(runs: Series, whole: CheckResult, noisy: Noisy) -> CheckResult:
    """This comparison, or that with a reference which quantises in the candidate's blocks."""
    if whole.outcome is Outcome.UNDECIDED or not whole.perturbed or not whole.largest_ratio:
        return whole
    try:
        quantising = quantising_modules(Path(whole.perturbed[0]))
        found = sample_blocks(Path(whole.reference), Path(whole.candidate), quantising)
    except TTraceError:
        return whole  # what cannot be read was told of already
    told = list(whole.notes)
    if found.uncut:
        told.append(_note(Topic.QUANTISED_AMONG_CALLS, found.uncut))
    if not found.calls:
        return replace(whole, notes=tuple(told))
    try:
        cut = _in_blocks(runs, whole, noisy, found.calls)
    except CommandFailed as error:
        return stands_without(whole, error)
    factor = _relative_error(cut, whole)
    is_cut = factor < _CLOSER
    note = _note(
        Topic.SCALES_OF_BLOCKS if is_cut else Topic.SCALES_OF_ALL,
        tuple(dict.fromkeys(call.module for call in found.calls)),
        total=max(len(call.blocks) for call in found.calls),
        factor=factor,
    )
    chosen, added = (cut if is_cut else whole), told[len(whole.notes) :]
    return replace(chosen, notes=(*chosen.notes, *added, note))


def _in_blocks(
    runs: Series, whole: CheckResult, noisy: Noisy, calls: Sequence[SampleBlocks]
) -> CheckResult:
    file = runs.folder / _FOLDER / _FILE
    write_blocks(file, calls)
    runs = replace(runs, blocks=file)
    noisy = replace(noisy, name=f"{_FOLDER}/{noisy.name}")
    name, then = f"{_FOLDER}/reference", runs.perturbed_runs
    reference = runs.run(name, runs.reference, then=then, **noisy.recorded)
    return runs.checked(reference, Path(whole.candidate), runs.perturbed(noisy), noisy)


def _note(topic: Topic, modules: Sequence[str], **more: Any) -> Note:
    return Note(topic=topic, count=len(modules), modules=tuple(modules), **more)


def _relative_error(cut: CheckResult, whole: CheckResult) -> float:
    """The errors of one comparison by those of the other, in the mean over all tensors.

    A mistake spoils what follows it in both alike, so that what comes before it tells.
    """
    others = {tensor.id: tensor.error_eps for tensor in whole.tensors}
    gains = [
        math.log(max(tensor.error_eps, _ROUNDING) / max(other, _ROUNDING))
        for tensor in cut.tensors
        if tensor.error_eps is not None and (other := others.get(tensor.id)) is not None
        if math.isfinite(tensor.error_eps) and math.isfinite(other)
        if tensor.error_eps or other
    ]
    return math.exp(math.fsum(gains) / len(gains)) if gains else 1.0
