"""Some mutated traces and results, after all cases that went wrong once; `make fuzz` tries many."""

from __future__ import annotations

import pytest

from attacks.fuzz.cases import Violation
from attacks.fuzz.fuzzing import fuzz


@pytest.fixture(scope="module")
def violations() -> list[Violation]:
    return fuzz(traces=150, reports=60, seeded=0).violations


@pytest.mark.flow
@pytest.mark.parametrize("kind", ["traceback", "slow", "memory", "silent"])
def test_nothing_goes_wrong(violations: list[Violation], kind: str) -> None:
    assert [violation for violation in violations if violation.kind == kind] == []
