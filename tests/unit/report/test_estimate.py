"""An estimate in words: every number with its basis, and a sentence for everything assumed."""

from dataclasses import replace

import pytest

from ttrace.core.estimate import Assumed, Assumption, Estimate, LowHigh, Rates, Volume
from ttrace.report.estimate import assumption, estimate_lines

SURE = LowHigh(2e6, 2e6)
FOUND = Estimate(
    trace="small",
    capture="full",
    axes={"dp": 4, "tp": 2},
    ranks=8,
    steps=1,
    perturbed_runs=2,
    workers=1,
    recorded=Volume(ranks=1, records=1000, segment_bytes=10**6, value_bytes=10**6),
    recorded_seconds=0.2,
    records=LowHigh(8000, 8000),
    candidate_bytes=LowHigh(8e6, 16e6),
    rank_bytes=SURE,
    journal_bytes=SURE,
    files=LowHigh(24, 24),
    reference_bytes=SURE,
    comparison_bytes=SURE,
    recording_seconds=LowHigh(0.1, 0.2),
    writing_seconds=LowHigh(0.002, 0.016),
    check_seconds=LowHigh(3, 12),
    check_bytes=LowHigh(3e8, 6e8),
    rates=Rates(
        device="cpu",
        capture="full",
        record_seconds=9e-5,
        byte_seconds=1e-8,
        read_seconds=2e-5,
        disk_rate=1e9,
    ),
    assumed=(Assumed(about=Assumption.SPLIT_UNKNOWN, what="tp", count=2),),
)

LINES = """\
from: small: 1000 records of a step on 1 rank, 1 MB
run: 8 ranks (dp 4, tp 2), 1 step, --capture full
records: 8,000 of all ranks, by counting those of the trace
disk: 8 MB to 16 MB of all ranks, 2 MB of the largest; 2 MB are journals; 24 files
reference: 2 MB of all ranks
comparison: 2 MB: candidate, reference and 2 perturbed references
failure: three more runs, of about the same bytes
recording: 0.1 to 0.2 s of a step on the largest rank: 90 us a record and 10 ns a byte on cpu; \
the recorded step spent 0.2 s, 2x what these say
writing: 0.002 to 0.016 s: from a disk for every rank to one for all, at 1 GB a second
check: 3 to 12 s and 300 MB to 600 MB of memory with 1 worker: by measured checks, and 20 us to \
read a record here
assumed: axis tp: is not in the trace; it splits every tensor, or none, hence a range; record it \
with 2 ranks to know
"""


def test_the_lines_of_an_estimate() -> None:
    said = "\n".join(f"{about}: {text}" for about, text in estimate_lines(FOUND))
    assert f"{said}\n" == LINES


def test_seconds_of_another_form_are_no_basis() -> None:
    other = replace(FOUND, assumed=(Assumed(about=Assumption.OTHER_FORM, what="auto"),))
    said = dict(estimate_lines(other))
    assert said["recording"].endswith("on cpu")


@pytest.mark.parametrize("about", list(Assumption))
def test_everything_assumed_has_a_sentence(about: Assumption) -> None:
    text = assumption(Assumed(about=about, what="layers", count=3))
    assert len(text) > 20
    assert "{" not in text
