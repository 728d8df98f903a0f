"""Functions are short and simple, and a public name means one thing; exceptions.txt says why not.

A line of it is `function PATH NAME: why` or `name NAME: why`. A file may be as long as it needs.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXCEPTIONS = Path(__file__).parent / "exceptions.txt"
# Lines of a function; lists of cases are longer than the code that they test.
MOST_LINES = {"src": 50, "zoo": 60, "benchmarks": 60, "tests": 60}
# Branches of a function of the package, counted as `complexity` does. Above the first, a comment in
# its body shows an example; above the second it is split.
EXPLAINED, MOST_BRANCHES = 12, 15

Function = ast.FunctionDef | ast.AsyncFunctionDef


def reasons(text: str) -> dict[str, str]:
    """What is excepted, and why."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {what: why.strip() for what, _, why in (line.partition(":") for line in lines)}


def functions(module: ast.Module) -> Iterator[Function]:
    yield from (node for node in ast.walk(module) if isinstance(node, Function))


def complexity(function: Function) -> int:
    """One, and one for each way in which the function may go on otherwise.

    `if a and b: ... else: ...` counts two: the condition, and the `and` in it.
    """
    count, open_ = 1, list(ast.iter_child_nodes(function))
    while open_:
        node = open_.pop()
        match node:
            case ast.BoolOp():
                count += len(node.values) - 1
            case ast.comprehension():
                count += 1 + len(node.ifs)
            case ast.If() | ast.IfExp() | ast.For() | ast.While() | ast.ExceptHandler():
                count += 1
            case ast.Assert() | ast.match_case():
                count += 1
        if not isinstance(node, Function | ast.ClassDef):  # these count for themselves
            open_ += ast.iter_child_nodes(node)
    return count


def too_long(root: Path) -> Iterator[str]:
    for folder, most in MOST_LINES.items():
        for file in sorted((root / folder).rglob("*.py")):
            for node in functions(ast.parse(file.read_text())):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= most:
                    yield f"function {file.relative_to(root)} {node.name}"


def too_hard(root: Path) -> Iterator[str]:
    """Functions with too many branches, and those with many that no comment explains."""
    for file in sorted((root / "src").rglob("*.py")):
        text = file.read_text()
        for node in functions(ast.parse(text)):
            branches = complexity(node)
            lines = text.splitlines()[node.lineno : node.end_lineno]
            is_explained = any(line.strip().startswith("#") for line in lines)
            if branches > MOST_BRANCHES or (branches > EXPLAINED and not is_explained):
                yield f"function {file.relative_to(root)} {node.name}"


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
    found, told = {*too_long(root), *too_hard(root), *homonyms(root)}, reasons(text)
    excused = {what for what, why in told.items() if why}
    return found - excused, told.keys() - found


@pytest.mark.flow  # it reads every file
def test_all_is_short_simple_and_named_once_or_has_a_reason() -> None:
    without, stale = unexcused(ROOT, EXCEPTIONS.read_text())
    assert without == set(), "shorten, split, explain or rename it, or write a line with a reason"
    assert stale == set(), f"remove these lines from {EXCEPTIONS}"


BRANCHES = "    if a: pass\n"


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """A tree with one fault of each kind, and their harmless neighbours."""
    for folder in MOST_LINES:
        (tmp_path / folder).mkdir()
    lines = MOST_LINES["src"]
    longest = "def longest() -> None:\n" + "    pass\n" * (lines - 1)
    (tmp_path / "src" / "a.py").write_text("class Same: ...\n_OWN = 1\n" + longest)
    (tmp_path / "src" / "b.py").write_text("from a import longest\n_OWN, Same = 1, 2\n")
    (tmp_path / "src" / "c.py").write_text("pass\n" * 2000)
    (tmp_path / "src" / "d.py").write_text(longest.replace("longest", "longer") + "    pass\n")
    (tmp_path / "src" / "f.py").write_text(
        f"def harder(a):\n    # Too many.\n{BRANCHES * MOST_BRANCHES}\n"
        f"def hard(a):\n{BRANCHES * EXPLAINED}\n"
        f"def explained(a):\n    # As in this example.\n{BRANCHES * EXPLAINED}\n"
        f"def simple(a):\n{BRANCHES * (EXPLAINED - 1)}\n"
    )
    (tmp_path / "zoo" / "e.py").write_text("Same: int = 3\n" + longest + "    pass\n")
    return tmp_path


FAULTS = {
    *("name Same", "function src/d.py longer"),
    *("function src/f.py harder", "function src/f.py hard"),
}


def test_each_kind_of_fault_would_be_found(made_up: Path) -> None:
    assert unexcused(made_up, "") == (FAULTS, set())


def test_an_exception_needs_a_reason_and_a_fault(made_up: Path) -> None:
    text = "# why not\nname Same: both are one thing\nfunction src/d.py longer:\nname other: gone\n"
    assert unexcused(made_up, text) == (FAULTS - {"name Same"}, {"name other"})
