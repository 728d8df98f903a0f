"""Which adapter a model gets, of those that are installed, registered and built in."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from tests.support.capturing import record
from ttrace.adapters import megatron, native
from ttrace.adapters.base import Adapter
from ttrace.adapters.registry import find_adapter, registered
from ttrace.errors import UsageError


class Engine(nn.Linear):
    """A model of another framework."""


class EngineAdapter(Adapter):
    name = "engine"


ENGINE = SimpleNamespace(matches=lambda model: isinstance(model, Engine), make=EngineAdapter)
PACKAGE = """
from ttrace.adapters.base import Adapter

class Installed(Adapter):
    name = "installed"

def matches(model):
    return type(model).__name__ == "Engine"

make = Installed
"""


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, package: str, source: str, line: str = ""
) -> None:
    """What pip would leave in site-packages, in a folder of its own."""
    (folder / f"{package}.py").write_text(source)
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    line = line or f"{package} = {package}"
    (metadata / "entry_points.txt").write_text(f"[ttrace.adapters]\n{line}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


def test_a_plain_module_is_native() -> None:
    assert find_adapter(nn.Linear(1, 1)).name == "native"


def test_native_needs_a_model() -> None:
    with pytest.raises(UsageError, match="needs the model"):
        find_adapter(3)
    with pytest.raises(UsageError, match="needs the model"):
        find_adapter([])


def test_a_registered_framework_is_asked_first_and_only_for_its_own() -> None:
    with registered("engine", ENGINE):
        assert find_adapter(Engine(1, 1)).name == "engine"
        assert find_adapter(nn.Linear(1, 1)).name == "native"
    assert find_adapter(Engine(1, 1)).name == "native"


def test_a_registration_ends_with_its_context_also_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), registered("engine", ENGINE):
        raise ZeroDivisionError
    assert find_adapter(Engine(1, 1)).name == "native"


def test_an_installed_package_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "ttrace_engine", PACKAGE)
    adapter = find_adapter(Engine(1, 1))
    assert (adapter.name, adapter.notes) == ("installed", [])
    assert find_adapter(nn.Linear(1, 1)).name == "native"


def test_two_that_match_are_both_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "ttrace_engine", PACKAGE)
    with (
        registered("other", ENGINE),
        pytest.raises(UsageError, match=r"ttrace_engine \(ttrace_engine\) and other"),
    ):
        find_adapter(Engine(1, 1))


@pytest.mark.parametrize(
    ("source", "line", "why"),
    [
        ("import nothing_of_this_name", "", "ModuleNotFoundError"),
        ("", "", "AttributeError"),
        ("def matches(model): raise ValueError('odd')", "", "ValueError: odd"),
        (PACKAGE, "ttrace_engine = ttrace_engine:absent", "AttributeError"),
        ("def matches(model): raise SystemExit", "ttrace_engine = absent_package", "ModuleNotF"),
    ],
    ids=["import", "no-function", "asking", "no-object", "no-package"],
)
def test_a_broken_package_is_skipped_and_named_in_the_notes(
    source: str, line: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "ttrace_engine", source, line)
    model = Engine(1, 1)
    adapter = find_adapter(model)
    assert adapter.name == "native"
    (note,) = adapter.notes
    assert "the adapter ttrace_engine (" in note
    assert why in note
    recorded = record(tmp_path / "trace", model, lambda: None)
    assert recorded.summary.notes[0] == note


def test_the_built_in_ones_are_not_taken_for_others() -> None:
    """They are entry points too, where the package is installed."""
    for package in (native, megatron):
        assert package.matches.__module__.startswith("ttrace.adapters.")
    assert find_adapter(nn.Linear(1, 1)).notes == []


@pytest.mark.flow
def test_asking_imports_no_framework() -> None:
    program = (
        "import sys\n"
        "import ttrace.adapters.registry as registry\n"
        "from torch import nn\n"
        "class Model(nn.Module): pass\n"
        "assert not registry.megatron.matches(Model())\n"
        "assert registry.native.matches(Model())\n"
        "assert not [m for m in sys.modules if m.split('.')[0] in ('megatron', 'deepspeed')]\n"
        "assert 'ttrace.adapters.native.adapter' not in sys.modules\n"
        "registry.find_adapter(Model())\n"
        "assert 'ttrace.adapters.native.adapter' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_megatron_is_asked_before_native_and_only_if_it_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Engine(1, 1)
    monkeypatch.delitem(sys.modules, "megatron.core.transformer.module", raising=False)
    assert not megatron.matches(model)
    imported: Any = SimpleNamespace(MegatronModule=Engine)
    monkeypatch.setitem(sys.modules, "megatron.core.transformer.module", imported)
    assert megatron.matches(model)
    assert megatron.matches([nn.Sequential(model)])
    assert not megatron.matches([nn.Linear(1, 1), "no module"])
