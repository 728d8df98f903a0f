"""The pytest plugin: options of `assert_equivalent`, and a fixture that runs gloo process groups.

It is loaded in every pytest session of an environment that has TTrace, so it imports nothing heavy
before it is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from ttrace.testing import KEPT, PAGES

if TYPE_CHECKING:
    from ttrace.lab.functions import WorkerPool

_OPTIONS = {"ttrace_out": KEPT, "ttrace_html": PAGES}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ttrace")
    group.addoption("--ttrace-out", metavar="DIR", help="Keep traces and results here.")
    group.addoption("--ttrace-html", metavar="DIR", help="Write the report of every test here.")


def pytest_configure(config: pytest.Config) -> None:
    for option, variable in _OPTIONS.items():
        value = config.getoption(option)
        if value:
            os.environ[variable] = os.path.abspath(value)  # noqa: PTH100  (keeps links as they are)


def pytest_unconfigure(config: pytest.Config) -> None:
    for option, variable in _OPTIONS.items():
        if config.getoption(option):
            os.environ.pop(variable, None)


@pytest.fixture(scope="session")
def process_groups() -> Iterator[Callable[[int], WorkerPool]]:
    """`process_groups(4).run(4, function, *args)`: what `function` returned on every rank."""
    from ttrace.lab.functions import WorkerPool

    pools: dict[int, WorkerPool] = {}

    def pool(world_size: int) -> WorkerPool:
        if world_size not in pools:
            pools[world_size] = WorkerPool(world_size)
        return pools[world_size]

    yield pool
    for made in pools.values():
        made.close()
