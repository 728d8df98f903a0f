"""Code: which lines of the program call a module, clip and update, and what a module runs.

    layers.1.feed_forward.w2    FeedForward.forward, model.py:91, the nearest class of the user's

Every place is looked up once, when it is met first, by walking up the stack: frames of torch and of
this package are passed over, those of installed packages are kept beside the user's own. Lines are
read then, so that a report shows the program as it ran.

Nothing of the run is kept alive: of a frame only its code and its line are read, since asking for
its local variables makes Python hold them until the function ends.
"""

from __future__ import annotations

import inspect
import linecache
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FrameType

import torch
from torch import nn

from ttrace.adapters.base import Adapter
from ttrace.core.record import Code, Excerpt

_LINES = 8  # chosen: a call and what it is made of, at a glance
_BEFORE = 4  # chosen: of these, above the line itself
_WIDEST = 160  # chosen: what is longer is data, not code
_PACKAGE = Path(__file__).parents[1]
_DEMO = _PACKAGE / "demo"  # plays a user's program
_TORCH = Path(torch.__file__).parent
_STANDARD = Path(sysconfig.get_path("stdlib"))


class CodePlaces:
    """The lines that one run was seen at."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._excerpts: dict[tuple[str, int], tuple[int, Excerpt]] = {}
        self._calls: dict[str, tuple[int, ...]] = {}

    def meet(self, name: str, *, inside_modules: bool = False) -> None:
        """The line that runs now is where this is called; only the first time counts.

        `inside_modules`: the user's own line must be one of a module, not of the training loop.
        """
        if name in self._calls:
            return
        self._calls[name] = ()
        with suppress(Exception):  # code is for people: a verdict does without it
            only = self._bodies if inside_modules else None
            found = _met(sys._getframe(1), only)  # noqa: SLF001
            self._calls[name] = tuple(self._add(_around(code, line)) for code, line in found)

    @cached_property
    def _bodies(self) -> frozenset[CodeType]:
        """Of everything that the classes of the modules define, or that was put on a module."""
        modules = [module for _, module in self._adapter.modules()]
        written = {base for each in modules for base in self._adapter.written_class(each).__mro__}
        owners = [*(vars(kind) for kind in written), *(vars(module) for module in modules)]
        defined = [value for owner in owners for value in owner.values() if callable(value)]
        every = [*defined, *map(inspect.unwrap, defined)]
        return frozenset(each.__code__ for each in every if hasattr(each, "__code__"))

    def code(self) -> Code:
        """Everything that was met, and what every module runs."""
        forwards = {}
        for path, module in self._adapter.modules():
            with suppress(Exception):  # as above
                body = _forward(module, self._adapter.written_class(module))
                if body is not None and (excerpt := _beginning(body)) is not None:
                    forwards[path] = self._add(excerpt)
        calls = {name: numbers for name, numbers in self._calls.items() if numbers}
        excerpts = tuple(excerpt for _, excerpt in self._excerpts.values())
        return Code(excerpts=excerpts, forwards=forwards, calls=calls)

    def _add(self, excerpt: Excerpt) -> int:
        key = (excerpt.file, excerpt.line)
        return self._excerpts.setdefault(key, (len(self._excerpts), excerpt))[0]


def shortest(file: str) -> str:
    """The file as people write it: relative to the working folder if it lies in there."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


@cache
def is_own(file: str) -> bool:
    """Whether a file belongs to the user's program, and not to Python or an installed package."""
    path = Path(file)
    is_demo = path.is_relative_to(_DEMO)
    return is_demo or not (_is_passed_over(file) or "site-packages" in path.parts)


@cache
def _is_passed_over(file: str) -> bool:
    """Whether a file is torch's, Python's or of this package: what calls a user's code for it."""
    path = Path(file)
    if file.startswith("<") or path.is_relative_to(_PACKAGE) or path.is_relative_to(_TORCH):
        return True
    return path.is_relative_to(_STANDARD) and "site-packages" not in path.parts


def _met(
    frame: FrameType | None, only: frozenset[CodeType] | None
) -> Iterator[tuple[CodeType, int]]:
    """The user's own line first, where there is one; then that of an installed package.

    `only`: the bodies of which the user's own line must be one.
    """
    nearest: list[tuple[CodeType, int]] = []
    for code, line in _frames(frame):
        if is_own(code.co_filename) and (only is None or code in only):
            yield code, line
            break
        if not nearest:
            nearest.append((code, line))
    yield from nearest


def _frames(frame: FrameType | None) -> Iterator[tuple[CodeType, int]]:
    """Frames upwards but for those of torch, of this package and of Python itself."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_own(file) or not _is_passed_over(file):
            yield frame.f_code, frame.f_lineno
        frame = frame.f_back


def _forward(module: nn.Module, kind: type) -> CodeType | None:
    """What runs when the module is called: somebody may have replaced it on the module itself."""
    replaced, written = vars(module).get("forward"), vars(kind).get("forward")
    found = [inspect.unwrap(each) for each in (replaced, written) if callable(each)]
    bodies = [each.__code__ for each in found if hasattr(each, "__code__")]
    own = (body for body in bodies if is_own(body.co_filename))
    return next(own, bodies[-1] if bodies else None)


@cache
def _beginning(code: CodeType) -> Excerpt | None:
    """The first lines of a function."""
    lines = _lines_of(code)
    return _excerpt(code, code.co_firstlineno, 0, lines[:_LINES]) if lines else None


@cache
def _around(code: CodeType, line: int) -> Excerpt:
    """The lines around one, not beyond its function."""
    lines = _lines_of(code)
    skipped = min(line - code.co_firstlineno - _BEFORE, len(lines) - _LINES)
    skipped = max(0, skipped)
    return _excerpt(code, line, skipped, lines[skipped : skipped + _LINES])


def _lines_of(code: CodeType) -> list[str]:
    """All of a function, or of a script."""
    lines = linecache.getlines(code.co_filename)[max(0, code.co_firstlineno - 1) :]
    return lines if code.co_name == "<module>" else inspect.getblock(lines)


def _excerpt(code: CodeType, line: int, skipped: int, lines: list[str]) -> Excerpt:
    """`lines` follow on those of the function that are skipped."""
    return Excerpt(
        file=shortest(code.co_filename),
        line=line,
        function=code.co_qualname.replace(".<locals>", ""),
        first=max(1, code.co_firstlineno) + skipped,
        lines=tuple(text[:_WIDEST] for text in textwrap.dedent("".join(lines)).splitlines()),
        is_own=is_own(code.co_filename),
    )
