"""Files and functions are short, and a public name means one thing; exceptions.txt says why not.

A line of it is `file PATH: why`, `function PATH NAME: why` or `name NAME: why`.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXCEPTIONS = Path(__file__).parent / "exceptions.txt"
# Lines of a file and of a function; lists of cases are longer than the code that they test.
LIMITS = {"src": (300, 50), "zoo": (400, 60), "benchmarks": (400, 60), "tests": (400, 60)}


def reasons(text: str) -> dict[str, str]:
    """What is excepted, and why."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {what: why.strip() for what, _, why in (line.partition(":") for line in lines)}


def too_long(root: Path) -> Iterator[str]:
    for folder, (longest_file, longest_function) in LIMITS.items():
        for file in sorted((root / folder).rglob("*.py")):
            text, path = file.read_text(), file.relative_to(root)
            if len(text.splitlines()) > longest_file:
                yield f"file {path}"
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    assert node.end_lineno is not None
                    if node.end_lineno - node.lineno >= longest_function:
                        yield f"function {path} {node.name}"


def defined(module: ast.Module) -> Iterator[str]:
    """Classes, functions, constants and aliases at the top of a module."""
    for node in module.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (name for target in targets for name in ast.walk(target))
            yield from (name.id for name in names if isinstance(name, ast.Name))


def homonyms(root: Path) -> Iterator[str]:
    """Public names that several modules of the package define."""
    files: dict[str, set[Path]] = defaultdict(set)
    for file in sorted((root / "src").rglob("*.py")):
        for name in defined(ast.parse(file.read_text())):
            files[name].add(file)
    yield from (
        f"name {name}" for name, found in files.items() if len(found) > 1 and name[0] != "_"
    )


def unexcused(root: Path, text: str) -> tuple[set[str], set[str]]:
    """What is too long or means two things without a reason, and reasons that nothing needs."""
    found, told = {*too_long(root), *homonyms(root)}, reasons(text)
    excused = {what for what, why in told.items() if why}
    return found - excused, told.keys() - found


def test_all_is_short_and_named_once_or_has_a_reason() -> None:
    without, stale = unexcused(ROOT, EXCEPTIONS.read_text())
    assert without == set(), "shorten or rename, or write a line with a reason"
    assert stale == set(), f"remove these lines from {EXCEPTIONS}"


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """A tree with one fault of each kind, and their harmless neighbours."""
    for folder in LIMITS:
        (tmp_path / folder).mkdir()
    file_lines, lines = LIMITS["src"]
    longest = "def longest() -> None:\n" + "    pass\n" * (lines - 1)
    (tmp_path / "src" / "a.py").write_text("class Same: ...\n_OWN = 1\n" + longest)
    (tmp_path / "src" / "b.py").write_text("from a import longest\n_OWN, Same = 1, 2\n")
    (tmp_path / "src" / "c.py").write_text("pass\n" * (file_lines + 1))
    (tmp_path / "src" / "d.py").write_text(longest.replace("longest", "longer") + "    pass\n")
    (tmp_path / "zoo" / "e.py").write_text("Same: int = 3\n" + longest + "    pass\n")
    (tmp_path / "tests" / "f.py").write_text("pass\n" * LIMITS["tests"][0])
    return tmp_path


FAULTS = {"name Same", "file src/c.py", "function src/d.py longer"}


def test_each_kind_of_fault_would_be_found(made_up: Path) -> None:
    assert unexcused(made_up, "") == (FAULTS, set())


def test_an_exception_needs_a_reason_and_a_fault(made_up: Path) -> None:
    text = "# why not\nname Same: both are the same thing\nfile src/c.py:\nname other: renamed\n"
    assert unexcused(made_up, text) == (FAULTS - {"name Same"}, {"name other"})
