"""Numbers in sentences: how many times its tolerance an error is, and factors and counted nouns.

    times(1.8), times(193_000), times(2.7e7)    1.8x, 193,000x, 27 million x
    filled("{count:tensor is/tensors are} wrong", count=1)    1 tensor is wrong

Enters: numbers. Leaves: text.
"""

from __future__ import annotations

import math
import re
from typing import Any

FAR_BEYOND = "far beyond"  # reads on as a number does: far beyond its tolerance

_MILLION = 1e6
_LARGE = {"trillion": 1e12, "billion": 1e9, "million": _MILLION}
_BYTES = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "KB": 1e3}
_TOO_LARGE = 1e15  # chosen: above, nobody has a word for it
_SMALL = 1e-3  # chosen: below, it is as good as nothing


def times(ratio: float) -> str:
    """Error over tolerance, to be read on: 193,000x its tolerance, far beyond its tolerance."""
    if not math.isfinite(ratio):
        return FAR_BEYOND
    if 0 < ratio < _SMALL:
        return f"below {_SMALL:g}x"
    if ratio < 10:
        return f"{_rounded(ratio, 2):g}x"
    if (shown := _rounded(ratio, 3)) < _MILLION:
        return f"{shown:,.0f}x" if shown >= 100 else f"{shown:g}x"
    shown = _rounded(ratio, 2)
    if shown >= _TOO_LARGE:
        return f"10^{math.floor(math.log10(shown))} x"
    name, size = next((name, size) for name, size in _LARGE.items() if shown >= size)
    return f"{shown / size:g} {name} x"


def exact_gain(gain: float) -> str:
    """As many digits as tell it from 1: 0.50, 1.049, 1.0000123."""
    distance = abs(gain - 1)
    if not math.isfinite(gain) or not 0 < distance < 9:
        return f"{gain:.3g}"
    return f"{gain:.{max(2, 1 - math.floor(math.log10(distance)))}f}"


def in_bytes(count: float) -> str:
    """1.2 GB, 35 MB, 812 bytes."""
    for name, size in _BYTES.items():
        if count >= size:
            return f"{_rounded(count / size, 3 if count >= 100 * size else 2):g} {name}"
    return counted(int(count), "byte")


def one_digit(value: float) -> float:
    """The value with its first digit, for what is known no better: 0.3, 40, 2,000,000."""
    return _rounded(value, 1)


def counted(count: int, noun: str) -> str:
    """1 module, 2 modules; `noun` as in the templates of `filled`."""
    return format(_Count(count), noun)


def filled(template: str, **values: Any) -> str:
    """A template with its values, in which whole numbers take a noun.

    {count:module}                      1 module, 2 modules
    {count:tensor is/tensors are}       1 tensor is, 2 tensors are
    {count:|differs/differ}             without the number: differs, differ
    """
    return template.format(
        **{
            name: _Count(value) if isinstance(value, int) else value
            for name, value in values.items()
        }
    )


class _Count(int):
    """A number that a noun follows."""

    def __format__(self, spec: str) -> str:
        if not re.search("[a-z]{2}", spec):
            return super().__format__(spec)
        singular, _, plural = spec.removeprefix("|").partition("/")
        word = singular if self == 1 else plural or f"{singular}s"
        return word if spec.startswith("|") else f"{int(self)} {word}"


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
