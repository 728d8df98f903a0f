"""What a watched run has told: one small file, which the first rank writes while it trains."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ttrace.core.door import Refused, from_dict, parse_json, read_bounded, to_dict
from ttrace.core.drift import WatchedRun
from ttrace.errors import CorruptTrace

WATCH_FILE = "watch.json"
_MOST_BYTES = 64 << 20  # chosen: a thousand times what a run writes


def write_watched(folder: Path, run: WatchedRun) -> None:
    """At once: who reads finds this one or the one before, also of a run that is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{WATCH_FILE}.{os.getpid()}.part"
    part.write_text(json.dumps(to_dict(run), indent=1) + "\n", encoding="utf-8")
    part.replace(folder / WATCH_FILE)


def read_watched(folder: Path) -> WatchedRun | None:
    """None where nothing was written yet."""
    file = folder / WATCH_FILE
    try:
        return from_dict(WatchedRun, parse_json(read_bounded(file, _MOST_BYTES)))
    except FileNotFoundError:
        return None
    except Refused as refused:
        raise CorruptTrace(
            f"{file}: {refused}; expected what a run writes that `ttrace watch` started"
        ) from None
