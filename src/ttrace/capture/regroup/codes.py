"""Which modules make codes, and of which dtype: casts to few bits, by the module that runs.

A run with noise sees it on its way, an isolated one is watched for it: what a module of one run
quantises and that of the other does not, or in another format, says what is wrong where they
differ.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ttrace.adapters.patching import TellFault
from ttrace.capture.operator_mode import OperatorMode, are_fake, are_plain, has_compiled
from ttrace.capture.regroup.grids import MAKE_CODES, coding_of
from ttrace.core.quantising import Quantising

Current = Callable[[], str | None]  # the path of the module that runs


class CodesMade:
    """The dtypes of codes, by module, in the order in which they were first met."""

    def __init__(self, current: Current) -> None:
        self._current = current
        self._found: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def add(self, codes: str) -> None:
        path = self._current()
        if path is not None:
            self._found[path][codes] = None

    def told(self) -> tuple[Quantising, ...]:
        return tuple(
            Quantising(module=path, codes=tuple(codes)) for path, codes in self._found.items()
        )


class CodesWatch(OperatorMode):
    """Looks at casts, and changes nothing."""

    def __init__(
        self,
        current: Current,
        roots: Sequence[nn.Module] = (),
        told: TellFault | None = None,
    ) -> None:
        super().__init__(told)
        self._made = CodesMade(current)
        self._roots = roots

    def _operate(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if are_fake(types) or func.overloadpacket not in MAKE_CODES:
            return func(*args, **kwargs)
        if not are_plain(types):
            return NotImplemented
        return self._guarded(func, functools.partial(self._look, func), args, kwargs)

    def _look(self, func: Any, call: Any, *args: Any, **kwargs: Any) -> Any:
        coding = coding_of(func, args, kwargs)
        if coding is not None:
            self._made.add(coding.codes)
        return call(*args, **kwargs)

    def is_needed(self, *, records: bool) -> bool:
        return records and not has_compiled(self._roots)

    def quantising(self) -> tuple[Quantising, ...] | None:
        """None where some of it could not be seen."""
        return None if has_compiled(self._roots) else self._made.told()
