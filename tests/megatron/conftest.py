"""Tests of Megatron-Core: without the package there is nothing to test."""

import importlib.util


def pytest_ignore_collect() -> bool | None:
    return None if importlib.util.find_spec("megatron") else True
