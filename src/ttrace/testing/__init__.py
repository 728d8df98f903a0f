"""For test suites: `assert_equivalent(reference, candidate)` says that a layout equals one device.

    from ttrace.testing import assert_equivalent

    def test_tensor_parallel_equals_one_device():
        assert_equivalent(train, train, world_size=4)

`train` stands at the top level of its file, builds its model, attaches a tracer and runs a step; it
runs in a gloo process group, of one rank for the reference. The pytest plugin adds options.
"""

from ttrace.core.results import NotEquivalent
from ttrace.lab.functions import WorkerPool
from ttrace.testing.equivalence import assert_equivalent

__all__ = ["NotEquivalent", "WorkerPool", "assert_equivalent"]
