"""An estimate in words: each number with what it was computed from, then all that was assumed.

disk        61 MB of all ranks, 7.9 MB of the largest; 1.8 MB are journals; 24 files
recording   0.11 to 0.2 s of a step: 46 us a record and 3.1 ns a byte by a self-test on cpu; ...
"""

from __future__ import annotations

from collections.abc import Iterator

from ttrace.core.estimate import Assumed, Assumption, Estimate, LowHigh
from ttrace.report.numbers import counted, in_bytes, times

_ASSUMED = {
    Assumption.LAYERS_ALIKE: "layers of {what}: each that is added or left out is like those "
    "between the first and the last, of {count} that were recorded",
    Assumption.LAYERS_DIFFER: "layers of {what}: the two that were recorded differ, and all added "
    "ones are like one of both, hence a range; record 3 layers to know",
    Assumption.LAYERS_UNEVEN: "layers of {what}: those between the first and the last differ from "
    "each other; added ones take their turns",
    Assumption.SIZES: "sizes: every dim that was as long becomes as long as stated: {what}",
    Assumption.SIZES_LEFT: "sizes that stay, and of how many tensors: {what}; change them with "
    "--size OLD=NEW",
    Assumption.SPLIT_SEEN: "axis {what}: splits what it splits in the trace, where it has {count} "
    "ranks",
    Assumption.SPLIT_UNKNOWN: "axis {what}: is not in the trace; it splits every tensor, or none, "
    "hence a range; record it with 2 ranks to know",
    Assumption.DATA_AXIS: "axis {what}: every rank has as many samples as a recorded one, and "
    "parameters that are split as recorded; --same-batch divides the recorded batch instead",
    Assumption.SAME_BATCH: "axis {what}: all ranks together have as many samples as recorded",
    Assumption.PIPELINE: "axis {what}: {count} stages with as many layers each; what stages send "
    "each other is recorded as a part of their layers",
    Assumption.STEPS_ALIKE: "steps: each further one is like the last of {count} that were "
    "recorded",
    Assumption.MICROBATCHES_ALIKE: "microbatches: {count}, each of the recorded size and like the "
    "last that was recorded",
    Assumption.REFERENCE: "the reference is recorded on as many ranks as the trace ({count}), with "
    "the samples of all ranks of the candidate",
    Assumption.OTHER_FORM: "recording: the trace was recorded in another form than --capture "
    "{what}, so its own seconds say nothing; half and twice the self-test's are the range",
    Assumption.OTHER_DEVICE: "recording: the trace was recorded on {what}, the rates are of "
    "another device; take them there, and give them to --rates",
    Assumption.TOO_MANY_LINES: "journals: this ttrace reads {count:,} bytes of them in a trace, "
    "and these are more: record fewer steps or microbatches",
}

_AFTER_A_FAILURE = {
    "full": "three more runs, of about the same bytes",
    "fingerprint": "nothing more is recorded",
    "auto": "three more runs, with the values of suspected blocks: --capture full says how many "
    "bytes all blocks have",
}


def estimate_lines(found: Estimate) -> Iterator[tuple[str, str]]:
    """What a line is about, and what it says."""
    rates, seen = found.rates, found.recorded
    ranks, records = counted(int(seen.ranks), "rank"), counted(int(seen.records), "record")
    yield "from", f"{found.trace}: {records} of a step on {ranks}, {in_bytes(seen.size_bytes)}"
    mesh = ", ".join(f"{axis} {size}" for axis, size in found.axes.items())
    ranks = counted(found.ranks, "rank") + (f" ({mesh})" if mesh else "")
    yield "run", f"{ranks}, {counted(found.steps, 'step')}, --capture {found.capture}"
    yield "records", f"{_counts(found.records)} of all ranks, by counting those of the trace"
    sizes = f"{_bytes(found.candidate_bytes)} of all ranks, {_bytes(found.rank_bytes)} of the"
    journals = f"{_bytes(found.journal_bytes)} are journals; {_counts(found.files)} files"
    yield "disk", f"{sizes} largest; {journals}"
    yield "reference", f"{_bytes(found.reference_bytes)} of all ranks"
    runs = counted(found.perturbed_runs, "perturbed reference")
    yield "comparison", f"{_bytes(found.comparison_bytes)}: candidate, reference and {runs}"
    yield "failure", _AFTER_A_FAILURE[found.capture]
    yield "recording", _recording(found)
    disks = f"from a disk for every rank to one for all, at {in_bytes(rates.disk_rate)} a second"
    yield "writing", f"{_seconds(found.writing_seconds)}: {disks}"
    workers = counted(found.workers, "worker")
    check = f"{_seconds(found.check_seconds)} and {_bytes(found.check_bytes)} of memory"
    basis = f"by measured checks, and {_short(rates.read_seconds * 1e6)} us to read a record here"
    yield "check", f"{check} with {workers}: {basis}"
    yield from (("assumed", assumption(each)) for each in found.assumed)


def assumption(assumed: Assumed) -> str:
    return _ASSUMED[assumed.about].format(what=assumed.what, count=assumed.count)


def _recording(found: Estimate) -> str:
    rates = found.rates
    own = rates.recording_seconds(found.recorded) / max(1.0, found.recorded.ranks)
    text = (
        f"{_seconds(found.recording_seconds)} of a step on the largest rank: "
        f"{_short(rates.record_seconds * 1e6)} us a record and "
        f"{_short(rates.byte_seconds * 1e9)} ns a byte on {rates.device}"
    )
    is_alike = all(each.about is not Assumption.OTHER_FORM for each in found.assumed)
    if is_alike and own:
        ratio = times(found.recorded_seconds / own)
        text += f"; the recorded step spent {found.recorded_seconds:.2g} s, {ratio} what these say"
    return text


def _bytes(ends: LowHigh) -> str:
    low, high = in_bytes(ends.low), in_bytes(ends.high)
    return low if low == high else f"{low} to {high}"


def _counts(ends: LowHigh) -> str:
    low, high = f"{ends.low:,.0f}", f"{ends.high:,.0f}"
    return low if low == high else f"{low} to {high}"


def _seconds(ends: LowHigh) -> str:
    low, high = _short(ends.low), _short(ends.high)
    return f"{low} s" if low == high else f"{low} to {high} s"


def _short(value: float) -> str:
    """Two digits: 0.031, 740, 3,000."""
    return f"{float(f'{value:.2g}'):,g}"
