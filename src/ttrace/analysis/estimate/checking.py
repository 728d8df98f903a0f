"""What `ttrace check` takes: seconds and memory, by how much there is to read and to measure.

Enters: what the traces of a comparison have. Leaves: seconds on one core and on several, and bytes
of memory. The coefficients were fitted to measured checks (`make bench-estimate`) on a machine
that read a record in `READ_SECONDS`; another machine is as much slower as it reads slower.
"""

from __future__ import annotations

from dataclasses import dataclass

from ttrace.core.estimate import LowHigh

# Measured by `make bench-estimate`, which prints them anew: seconds of CPU, and bytes.
READ_SECONDS = 1.57e-5
START_SECONDS = 2.0  # torch is imported, and the command line
RECORD_SECONDS = 1.1e-5  # a record of any trace: read, placed, verified
PAIR_SECONDS = 6.3e-4  # a tensor that is measured against another
BYTE_SECONDS = 2.6e-10  # a stored byte that is read and compared
START_BYTES = 2.8e8
RECORD_BYTES = 90
PAIR_BYTES = 6800
WORKER_BYTES = START_BYTES  # a process that measures has a torch of its own
# Chosen: checks that were measured are within 1.3 times of this; others may be further away.
MISSED = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckWork:
    """What a check reads: records and stored bytes of all traces, pairs of tensors to measure."""

    records: float
    pairs: float
    stored_bytes: float


def check_seconds(work: CheckWork, workers: int, speed: float) -> LowHigh:
    """`speed`: how many times as long this machine takes as the one of the coefficients."""
    measuring = PAIR_SECONDS * work.pairs + BYTE_SECONDS * work.stored_bytes
    starting = START_SECONDS * (1 if workers == 1 else 2)  # workers start at the same time
    found = (starting + RECORD_SECONDS * work.records + measuring / workers) * speed
    return LowHigh(found / MISSED, found * MISSED)


def check_memory(work: CheckWork, workers: int) -> LowHigh:
    """Bytes of all processes together."""
    own = START_BYTES + RECORD_BYTES * work.records + PAIR_BYTES * work.pairs
    found = own + (WORKER_BYTES * workers if workers > 1 else 0)
    return LowHigh(found / MISSED, found * MISSED)
