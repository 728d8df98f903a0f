"""Processes that try to outlive the command that started them, and whether they still run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

# Each writes its process id into a file of its own, in the folder that {folder} stands for.
_STAYS = "echo $$ > {folder}/%s.part; mv {folder}/%s.part {folder}/%s.pid; exec sleep 600"
_DEAF = 'trap "" TERM HUP INT; '
_WAYS = {
    "plain": "sh -c '{stays}' &",
    "session": "setsid sh -c '{stays}' &",
    "orphan": "(setsid sh -c '{stays}' &)",
    "clean": "(env -i PATH=\"$PATH\" setsid sh -c '{stays}' &)",
    "deaf": "(env -i PATH=\"$PATH\" setsid sh -c '{deaf}{stays}' &)",
}


def starts_survivors(folder: Path) -> str:
    """A shell command that starts one process of each way and goes on once all of them run."""
    folder.mkdir()
    started = "".join(
        way.format(stays=(_STAYS % (name, name, name)).format(folder=folder), deaf=_DEAF) + "\n"
        for name, way in _WAYS.items()
    )
    return f"{started}while [ $(ls {folder}/*.pid | wc -l) -lt {len(_WAYS)} ]; do sleep 0.02; done"


def survivors(folder: Path) -> dict[str, int]:
    """Those of them that run, by the way in which they were started."""
    pids = {path.stem: int(path.read_text()) for path in folder.glob("*.pid")}
    assert pids.keys() == _WAYS.keys(), "they were not started"
    return {name: pid for name, pid in pids.items() if is_running(pid)}


def is_running(pid: int) -> bool:
    """A zombie is not running: in a container nobody may have collected it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
