"""Plants mutants into a copy of the sources, each behind a switch.

    python -m studies.mutants.plant COPY 80 1      80 mutants, of the draw with seed 1

An expression becomes `(MUTATED if mutant(7) else ORIGINAL)`, a statement `if not mutant(7): ...`.
So one run of all tests with every switch off tells which tests reach which mutant.
"""

from __future__ import annotations

import ast
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOMS = ("adapters", "analysis", "capture", "measure", "trace")
SWITCH = "mutant"
_COMPARE = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_BINARY = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.BitOr: "&",
    ast.BitAnd: "|",
}
# It is in every process that imports ttrace: what is on stands in a file, so that no environment
# has to carry it, and whoever is reached is written down once for each test.
RUNTIME = '''"""Switches of planted mutants."""

import mmap
import os
from pathlib import Path

_HERE = Path(__file__).parent
_ON = int((_HERE / "mutant.on").read_text())
_TEST = _HERE / "mutant.test"
_REACHED = str(_HERE / "mutant.reached")
with _TEST.open("rb") as _file:
    _current = mmap.mmap(_file.fileno(), 4, access=mmap.ACCESS_READ)
_seen = set()


def mutant(number):
    if number == _ON:
        return True
    if _ON == -1:
        key = (number, _current[:4])
        if key not in _seen:
            _seen.add(key)
            line = f"{number} {int.from_bytes(key[1])}\\n".encode()
            handle = os.open(_REACHED, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(handle, line)
            os.close(handle)
    return False
'''


@dataclass(frozen=True)
class Site:
    """A place that can be changed: offsets in the file, and what is to stand there."""

    file: str
    line: int
    start: int
    end: int
    original: str
    mutated: str
    is_statement: bool
    indent: int = 0


class Sites(ast.NodeVisitor):
    """All places in the bodies of functions of one file."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self.text, self.found = file, text, list[Site]()
        self._starts = [0]
        for line in text.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._bytes = text.encode()
        self._depth = 0

    def offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def span(self, node: ast.AST) -> tuple[int, int]:
        return (
            self.offset(node.lineno, node.col_offset),  # type: ignore[attr-defined]
            self.offset(node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
        )

    def source(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self._bytes[start:end].decode()

    def add(self, node: ast.expr, mutated: str) -> None:
        if self._depth:
            start, end = self.span(node)
            found = Site(self.file, node.lineno, start, end, self.source(node), mutated, False)
            self.found.append(found)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._depth += 1
        for child in node.body:
            self.visit(child)
        self._depth -= 1

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Offsets inside of f-strings are not those of the file."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Match(self, node: ast.Match) -> None:
        for case in node.cases:
            for child in case.body:
                self.visit(child)

    def visit_Assert(self, node: ast.Assert) -> None:
        """What an assertion says cannot be wrong in a run that passes."""

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
            left, right = self.source(node.left), self.source(node.comparators[0])
            self.add(node, f"({left}) {_COMPARE[type(node.ops[0])]} ({right})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _BINARY and not isinstance(node.left, ast.JoinedStr | ast.Constant):
            left, right = self.source(node.left), self.source(node.right)
            self.add(node, f"({left}) {_BINARY[type(node.op)]} ({right})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = " or " if isinstance(node.op, ast.And) else " and "
        self.add(node, other.join(f"({self.source(value)})" for value in node.values))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.add(node, f"bool({self.source(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node, str(not node.value))
        elif isinstance(node.value, int):
            self.add(node, str(node.value + 1))

    def visit_If(self, node: ast.If) -> None:
        self.add(node.test, f"not ({self.source(node.test)})")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.add(node.test, f"not ({self.source(node.test)})")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self.add(node.value, "None")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if self._depth and isinstance(node.value, ast.Call):
            start, end = self.span(node)
            text = self.source(node)
            if "\n" not in text:
                here = Site(self.file, node.lineno, start, end, text, "pass", True, node.col_offset)
                self.found.append(here)
        self.generic_visit(node)


def sites(package: Path) -> Iterator[Site]:
    for room in ROOMS:
        for file in sorted((package / room).rglob("*.py")):
            text = file.read_text()
            visitor = Sites(str(file.relative_to(package)), text)
            visitor.visit(ast.parse(text))
            yield from visitor.found


def drawn(all_sites: list[Site], number: int, seed: int) -> list[Site]:
    """At random, as many from a room as it has places, and none inside of another."""
    draw = random.Random(seed)
    left = all_sites[:]
    draw.shuffle(left)
    taken: list[Site] = []
    for site in left:
        others = [each for each in taken if each.file == site.file]
        if all(site.end <= each.start or each.end <= site.start for each in others):
            taken.append(site)
        if len(taken) == number:
            break
    return sorted(taken, key=lambda site: (site.file, site.start))


def plant(package: Path, chosen: list[Site]) -> None:
    by_file: dict[str, list[tuple[int, Site]]] = {}
    for number, site in enumerate(chosen):
        by_file.setdefault(site.file, []).append((number, site))
    for file, numbered in by_file.items():
        path = package / file
        data = path.read_bytes()
        for number, site in sorted(numbered, key=lambda each: -each[1].start):
            if site.is_statement:
                new = f"if not {SWITCH}({number}): {site.original}"
            else:
                new = f"(({site.mutated}) if {SWITCH}({number}) else ({site.original}))"
            data = data[: site.start] + new.encode() + data[site.end :]
        text = data.decode()
        future = "from __future__ import annotations\n"
        line = f"from ttrace.mutants import {SWITCH}\n"
        at = text.index(future) + len(future) if future in text else _after_docstring(text)
        text = text[:at] + line + text[at:]
        ast.parse(text)
        path.write_text(text)
    (package / "mutants.py").write_text(RUNTIME)
    (package / "mutant.on").write_text("-1")
    (package / "mutant.test").write_bytes(bytes(4))


def _after_docstring(text: str) -> int:
    first = ast.parse(text).body[0]
    return sum(len(line) for line in text.splitlines(keepends=True)[: first.end_lineno])


def main(copy: str, number: str, seed: str) -> None:
    package = Path(copy) / "src" / "ttrace"
    chosen = drawn(list(sites(package)), int(number), int(seed))
    plant(package, chosen)
    told = [{"number": n, **asdict(site)} for n, site in enumerate(chosen)]
    (Path(copy) / "mutants.json").write_text(json.dumps(told, indent=1))
    for site in told:
        first_line = site["original"][:60].split("\n")[0]
        print(site["number"], f"{site['file']}:{site['line']}", first_line)


if __name__ == "__main__":
    main(*sys.argv[1:])
