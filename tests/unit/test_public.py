"""What `import ttrace` gives, and what a training job pays for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ttrace
from ttrace import errors
from ttrace.capture.settings import Settings, without_settings

# What looks at traces has no place in a training job, and neither has what it is shown with.
FOREIGN = ("ttrace.analysis", "ttrace.report", "ttrace.lab", "ttrace.cli", "rich", "typer")

JOB = """
import json, sys
import torch, ttrace
def foreign():
    return sorted({name for name in sys.modules if name.startswith(tuple(FOREIGN))})
FOREIGN = json.loads(sys.argv[1])
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tracer = ttrace.attach(model, optimizer)
with tracer.step():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
job = foreign()
ttrace.check, ttrace.diff
print(json.dumps([tracer.enabled, job, foreign()]))
"""


def loaded_by_a_job(settings: Settings | None) -> tuple[bool, list[str], list[str]]:
    """Whether it was traced, what it loaded, and what it would have loaded for a check."""
    source = str(Path(ttrace.__file__).parents[1])
    environment = without_settings(os.environ) | {"PYTHONPATH": source}
    if settings is not None:
        environment |= settings.to_environment()
    done = subprocess.run(
        [sys.executable, "-c", JOB, json.dumps(FOREIGN)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    traced, job, later = json.loads(done.stdout)
    return traced, job, later


@pytest.mark.flow
@pytest.mark.parametrize("traced", [False, True], ids=["untraced", "traced"])
def test_a_training_job_loads_nothing_that_looks_at_traces(traced: bool, tmp_path: Path) -> None:
    """The last list shows that the one before it could have been something else than empty."""
    settings = Settings(folder=tmp_path / "trace") if traced else None
    was_traced, job, later = loaded_by_a_job(settings)
    assert was_traced == traced
    assert job == []
    assert {"ttrace.analysis.check", "ttrace.lab.experiment"} <= set(later)


def test_every_public_name_is_there() -> None:
    assert dir(ttrace) == ttrace.__all__ == sorted(ttrace.__all__)
    for name in ttrace.__all__:
        assert getattr(ttrace, name) is not None


def test_names_come_from_where_a_type_checker_sees_them() -> None:
    """The table at run time and the imports for type checkers name the same."""
    source = Path(ttrace.__file__).read_text().partition("if TYPE_CHECKING:")[2]
    block = source.partition("__version__")[0]
    for home, names in ttrace._HOMES.items():
        imported = block.partition(f"from {home} import ")[2].partition("from ")[0]
        found = sorted(imported.replace("(", " ").replace(")", " ").replace(",", " ").split())
        assert found == sorted(names), home
    assert sorted([n for names in ttrace._HOMES.values() for n in names]) == sorted(
        set(ttrace.__all__) - {"__version__"}
    )


def test_every_error_is_public() -> None:
    known = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.TTraceError)
    }
    assert known <= set(ttrace.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'frobnicate'"):
        ttrace.frobnicate  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.flow
def test_the_pytest_plugin_loads_no_torch_before_it_is_used() -> None:
    script = """
import json, sys
import ttrace.testing.pytest_plugin
before = "torch" in sys.modules
from ttrace.testing import assert_equivalent
print(json.dumps([before, "torch" in sys.modules]))
"""
    environment = os.environ | {"PYTHONPATH": str(Path(ttrace.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [False, True]
