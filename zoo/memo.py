"""A memo on disk: what was made once is found again, by whichever process asks.

    memo = Memo(folder)
    folder = memo.made(key, make)       make(folder) runs once for each key, under a lock

Several workers of a test run ask for the same references and twins. A key is spelled from values,
so that every process spells it alike; `sources_digest` belongs into the folder of a memo that
outlives a run, so that nothing is found again after the code changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import FunctionType

import numpy as np
import torch

_ROOT = Path(__file__).parents[1]
# What a traced run executes: a change in any of these may change what was made.
_SOURCES = ("src/ttrace", "zoo", "tests", "examples")
_ENDINGS = {".py", ".c", ".h", ".so"}


@dataclass(frozen=True, slots=True)
class Memo:
    """A folder with one folder for each key."""

    folder: Path

    def made(self, key: object, make: Callable[[Path], None]) -> Path:
        """The folder that `make` filled for this key, now or before; it must not be changed."""
        name = hashlib.sha256(spelled(key).encode()).hexdigest()[:24]
        done = self.folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.lock").open("w") as lock:
            # One makes it while the others wait; a process that dies lets go of its lock.
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                if not done.exists():
                    self._make(done, make)
            finally:
                # Closing would not do: workers that were forked meanwhile have the file open, too.
                fcntl.flock(lock, fcntl.LOCK_UN)
        return done

    def _make(self, done: Path, make: Callable[[Path], None]) -> None:
        """Fill a folder beside the final one, and give it its name when it is whole."""
        fresh = Path(tempfile.mkdtemp(prefix=f"{done.name}-", dir=self.folder))
        try:
            make(fresh)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        fresh.rename(done)


def spelled(value: object) -> str:
    """Spell a value so that equal values give equal texts in every process.

    `repr` would not do: the order of a set differs between processes, and functions show where
    they lie in memory.
    """
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if is_dataclass(value) and not isinstance(value, type):
        inner = ", ".join(f"{f.name}={spelled(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__qualname__}({inner})"
    if isinstance(value, FunctionType):
        return f"{value.__code__.co_filename}:{value.__qualname__}"
    if isinstance(value, dict):
        pairs = sorted(f"{spelled(key)}: {spelled(each)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(spelled, value)))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(spelled, value))}]"
    if value is None or isinstance(value, bool | int | float | str | bytes | Path | torch.dtype):
        return repr(value)
    raise TypeError(f"a key is made of plain values, found {value!r} of {type(value)}")


@cache
def sources_digest() -> str:
    """A digest of all sources that a traced run may execute, and of the versions beside them."""
    digest = hashlib.sha256(f"{sys.version} {torch.__version__} {np.__version__}".encode())
    for source in _SOURCES:
        for file in sorted((_ROOT / source).rglob("*")):
            if file.suffix in _ENDINGS and file.is_file():
                digest.update(str(file.relative_to(_ROOT)).encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def forget_others(folder: Path, kept: str) -> None:
    """Remove what was made from sources that are gone: all folders beside the one that is used."""
    for other in folder.iterdir() if folder.exists() else ():
        if other.name != kept:
            shutil.rmtree(other, ignore_errors=True)
