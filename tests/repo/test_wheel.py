"""The wheel holds the package and nothing else: no planted bug, no test, no benchmark."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

pytestmark = pytest.mark.flow

ROOT = Path(__file__).parents[2]
FILES = ("pyproject.toml", "build_kernel.py", "README.md", "LICENSE")
FOLDERS = ("src", "zoo", "benchmarks", "studies")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what a wheel could be made of; building in place would replace the kernel."""
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path / name)
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    return tmp_path


def names_in_wheel(tree: Path) -> set[str]:
    """Built without a compiler, which would take most of the time."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "wheel"],
        cwd=tree,
        env=os.environ | {"CC": "no-such-compiler"},
        check=True,
        capture_output=True,
    )
    (wheel,) = (tree / "wheel").glob("*.whl")
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


def strangers(names: set[str]) -> set[str]:
    """What is at the top beside the package and its description."""
    tops = {name.partition("/")[0] for name in names}
    return {top for top in tops if top != "ttrace" and not top.endswith(".dist-info")}


def test_the_wheel_holds_the_package_alone(tree: Path) -> None:
    names = names_in_wheel(tree)
    assert strangers(names) == set()
    assert {
        "ttrace/cli/SKILL.md",
        "ttrace/demo/bugs.py",
        "ttrace/py.typed",
        "ttrace/measure/kernel.c",
    } <= names
    assert not any("zoo" in name for name in names)


def test_a_zoo_in_the_wheel_would_be_seen(tree: Path) -> None:
    settings = tree / "pyproject.toml"
    text = settings.read_text()
    wider = text.replace('packages = ["src/ttrace"]', 'packages = ["src/ttrace", "zoo"]')
    assert wider != text
    settings.write_text(wider)
    assert strangers(names_in_wheel(tree)) == {"zoo"}
