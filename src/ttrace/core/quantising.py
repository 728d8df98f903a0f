"""Codes that a run made, by the module whose forward made them. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from ttrace.core.limits import Label


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantising:
    """`codes`: their dtypes, as far as operators tell; WHOLE_NUMBERS where values were rounded."""

    module: Label
    codes: tuple[Label, ...] = ()


WHOLE_NUMBERS = "whole numbers"
