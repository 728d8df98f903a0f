"""Threads of a test: those that a process keeps for all of them do not count."""

from __future__ import annotations

import threading

_KEPT = "ttrace-fetch"  # they read ahead behind URLs


def running_threads() -> int:
    """How many run, the main one included."""
    return sum(not thread.name.startswith(_KEPT) for thread in threading.enumerate())
