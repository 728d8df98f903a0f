"""The bugs of native PyTorch: families of one job each, then pairs planted together."""

from __future__ import annotations

from zoo.bug import Bug
from zoo.native import (
    context_parallel,
    data_parallel,
    dtensor,
    experts,
    marks,
    sequence_parallel,
    tensor_parallel,
)
from zoo.native.job import native_bug
from zoo.registry import register

_SINGLE = (
    *data_parallel.BUGS,
    *tensor_parallel.BUGS,
    *sequence_parallel.BUGS,
    *context_parallel.BUGS,
    *experts.BUGS,
    *dtensor.BUGS,
    *marks.BUGS,
)


def _pair(first: str, second: str) -> Bug:
    """Two bugs of one job in one run."""
    one, other = (next(bug for bug in _SINGLE if bug.name == name) for name in (first, second))
    assert one.twin == other.twin
    return native_bug(
        f"{first}+{second}",
        f"{first} and {second} together",
        f"{one.origin}, {other.origin}",
        *one.expected,
        *other.expected,
        train=one.twin.arguments[0],
        layout=one.layout,
        together=(first, second),
    )


register(
    *_SINGLE,
    # a wrong weight gradient in one layer, a wrong backward in the next
    _pair("gathered-input-layout", "reduced-again"),
    # a wrong backward in one layer, a wrong forward in the next
    _pair("aux-loss-scale", "unsplit-positions"),
    # a wrong forward, and a gradient that is not reduced
    _pair("ulysses-permutation", "unsynced-norm"),
    # a wrong weight gradient, and a wrong norm
    _pair("gathered-input-layout", "whole-counted-by-each"),
)
