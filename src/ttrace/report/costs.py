"""What recording cost, or will cost, in a sentence.

recorded 1.2 GB in 1 step of 0.41 s; hooks took 0.22 s, 54% of it
"""

from __future__ import annotations

from collections.abc import Iterator

from ttrace.core.checkup import Checkup
from ttrace.core.cost import RecordingCost
from ttrace.report.numbers import counted, in_bytes

_RUNS, _MOST_RUNS = 3, 6  # of a comparison, and of one that fails and is isolated


def cost_line(cost: RecordingCost) -> str:
    steps = f"{counted(cost.steps, 'step')}{' of' if cost.steps == 1 else ', the last of'}"
    took = f"hooks took {_seconds(cost.hook_seconds)}, {cost.share:.0%} of it"
    size = in_bytes(cost.size_bytes)
    return f"recorded {size} in {steps} {_seconds(cost.step_seconds)}; {took}"


def short_cost(cost: RecordingCost) -> str:
    """The same as a part of another sentence."""
    return f"{in_bytes(cost.size_bytes)}, hooks {cost.share:.0%} of the step"


def predictions(found: Checkup) -> Iterator[str]:
    """What a recorded step of this command takes, in each form that tensors are recorded in."""
    whole, small = in_bytes(found.size_bytes), in_bytes(found.fingerprint_bytes)
    yield f"full tensors: a step takes {whole} of all ranks, and {_seconds(found.seconds)}"
    yield f"fingerprints (--capture auto): {small} of all ranks"


def room(found: Checkup) -> str:
    """Whether a comparison fits on the disk; a failure leaves the traces of all its runs there."""
    most = _MOST_RUNS * found.size_bytes
    free = f"{in_bytes(found.free_bytes)} are free"
    needs = f"{_RUNS} runs take {in_bytes(_RUNS * found.size_bytes)}, {_MOST_RUNS} {in_bytes(most)}"
    short = "; too little: choose another disk with --out" if most > found.free_bytes else ""
    return f"{free}; {needs}{short}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
