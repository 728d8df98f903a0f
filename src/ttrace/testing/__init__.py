"""For test suites: `assert_equivalent(reference, candidate)` says that a layout equals one device.

    from ttrace.testing import assert_equivalent

    def test_tensor_parallel_equals_one_device():
        assert_equivalent(train, train, world_size=4)

`train` stands at the top level of its file, builds its model, attaches a tracer and runs a step; it
runs in a gloo process group, of one rank for the reference. The pytest plugin adds options.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ttrace.core.results import NotEquivalent
    from ttrace.lab.functions import WorkerPool
    from ttrace.testing.equivalence import assert_equivalent

# Variables by which the options of the pytest plugin reach `assert_equivalent`.
KEPT = "TTRACE_PYTEST_OUT"  # folder that keeps traces and results, set by --ttrace-out
PAGES = "TTRACE_PYTEST_HTML"  # folder for the report of every test, set by --ttrace-html

__all__ = ["NotEquivalent", "WorkerPool", "assert_equivalent"]

# Imported when they are used: every pytest session imports this package for its plugin.
_HOMES = {
    "NotEquivalent": "ttrace.core.results",
    "WorkerPool": "ttrace.lab.functions",
    "assert_equivalent": "ttrace.testing.equivalence",
}

if not TYPE_CHECKING:  # a type checker would believe that every name exists

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'ttrace.testing' has no attribute {name!r}")
        globals()[name] = found = getattr(importlib.import_module(_HOMES[name]), name)
        return found


def __dir__() -> list[str]:
    return __all__
