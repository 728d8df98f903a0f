"""The grid of correct runs."""

from __future__ import annotations

from benchmarks.clean.first_contact import first_contact
from zoo.clean.case import Case


def design() -> list[Case]:
    return first_contact()
