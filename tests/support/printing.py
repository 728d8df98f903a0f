"""What a terminal shows of a result."""

from __future__ import annotations

import io
from typing import Literal

from rich.console import Console

from ttrace.core.results import CheckResult
from ttrace.report.terminal import print_check


def printed(check: CheckResult, *, terminal: bool = False) -> str:
    colours: Literal["standard"] | None = "standard" if terminal else None
    file = io.StringIO()
    console = Console(file=file, width=150, force_terminal=terminal, color_system=colours)
    print_check(check, console)
    text = file.getvalue()
    return "".join(line.rstrip() + "\n" for line in text.splitlines())
