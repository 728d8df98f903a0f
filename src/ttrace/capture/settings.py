"""Settings: how one run is traced, as a value and as the environment of its processes.

    Settings(folder=Path("out/perturbed-1"), noise_seed=1)
    {"TTRACE_OUT": "/home/me/out/perturbed-1", "TTRACE_STEPS": "1", "TTRACE_NOISE_SEED": "1"}

    WatchSettings(folder=Path("out"), every=100)
    {"TTRACE_WATCH": "/home/me/out", "TTRACE_EVERY": "100"}

    pack({"OUT": "/my runs/$1", "STEPS": "3"})      eyJPVVQiOiAiL215IHJ1bnMvJDEiLCAiU1RFUFMiOiAiMyJ9

Whoever starts a run writes the variables; `attach`, in every process of it, reads them. Where they
do not get there by themselves, one word that holds them all is handed on. No shell, JSON, YAML or
scheduler changes it on its way: letters, digits, - and _ (base64 of RFC 4648, section 5) mean
nothing to any of them, in quotes or without. A word that was cut or changed is told from one that
was not. The names of the variables stand in this file alone.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ttrace.core.drift import SharedKind
from ttrace.errors import UsageError
from ttrace.trace.store import PathOrUrl, local_path, place_of

OUT = "TTRACE_OUT"  # folder of the trace, or its URL; tracing is off without it
SPOOL = "TTRACE_SPOOL"  # where a trace is before it is uploaded; it belongs to a machine, not a run
STEPS = "TTRACE_STEPS"  # how many steps to record, 1 by default
SKIP = "TTRACE_SKIP"  # how many steps to let pass before that, 0 by default
EVERY = "TTRACE_EVERY"  # record every n-th step from there on, 1 by default
LIMIT_BYTES = "TTRACE_MAX_BYTES"  # that the trace of all ranks may take
RESUME = "TTRACE_RESUME"  # 1: go on with the trace of a run that was killed
NOISE_SEED = "TTRACE_NOISE_SEED"  # of the rounding noise of a perturbed reference
OTHER_KERNELS = "TTRACE_OTHER_KERNELS"  # 1: noise as between kernels of two devices
SPLIT = "TTRACE_SPLIT"  # in how many rounded parts a linear layer adds its products
TAP = "TTRACE_TAP"  # 1: record every use of a tensor by itself, as isolated runs do
INSIDE = "TTRACE_INSIDE"  # tap blocks, and inside of these (JSON); values of these are recorded
BLOCKS = "TTRACE_BLOCKS"  # file that says in which blocks of samples modules run
PLAN = "TTRACE_PLAN"  # folder of plans: overwrite every value with the reference's
HIGH_PRECISION = "TTRACE_HIGH_PRECISION"  # patterns of modules that quantise nothing (JSON)
SUMS = "TTRACE_SUMS"  # that a fingerprint keeps of every tensor at least: fewer for tiny models
PAYLOAD = "TTRACE_PAYLOAD"  # name of the form in which tensors are stored, by default as they are
WATCH = "TTRACE_WATCH"  # folder of a run whose replicas are compared, and that is not traced
WITHOUT = "TTRACE_WITHOUT"  # what of replicas is not compared, with commas between
PACKED = "TTRACE_SETTINGS"  # all of these in one word: read where the others did not arrive

_VARIABLES = (
    *(OUT, STEPS, SKIP, EVERY, LIMIT_BYTES, RESUME, NOISE_SEED, OTHER_KERNELS, SPLIT, TAP, INSIDE),
    *(HIGH_PRECISION, SUMS, BLOCKS, PLAN, PAYLOAD, WATCH, WITHOUT, PACKED),
)
_SHOWN_CHARS = 40  # chosen: enough to see that it is a name, or cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where a run's trace goes and what is done to the run while it is recorded."""

    folder: PathOrUrl
    steps: int = 1
    skip: int = 0
    every: int = 1
    max_bytes: int | None = None
    resume: bool = False
    noise_seed: int | None = None
    other_kernels: bool = False
    split: int = 1
    tap: bool = False
    inside: tuple[str, ...] | None = None  # None: everywhere
    blocks: Path | None = None
    plan: Path | None = None
    high_precision: tuple[str, ...] = ()  # patterns of module paths
    payload: str | None = None
    sums: int | None = None
    spool: Path = field(default_factory=lambda: spool_of({}))

    @property
    def schedule(self) -> Schedule:
        return Schedule(steps=self.steps, skip=self.skip, every=self.every)

    def to_environment(self) -> dict[str, str]:
        """The variables that say the same to every process of the run."""
        numbers = {
            STEPS: self.steps,
            SKIP: self.skip,
            EVERY: self.every if self.every > 1 else 0,
            LIMIT_BYTES: self.max_bytes,
            RESUME: int(self.resume),
            OTHER_KERNELS: int(self.other_kernels),
            SPLIT: self.split if self.split > 1 else 0,
            TAP: int(self.tap),
            SUMS: self.sums,
        }
        values = {OUT: str(self.folder.resolve())}
        values |= {name: str(number) for name, number in numbers.items() if number}
        if self.noise_seed is not None:
            values[NOISE_SEED] = str(self.noise_seed)
        for name, path in ((BLOCKS, self.blocks), (PLAN, self.plan)):
            if path is not None:
                values[name] = str(path.resolve())
        if self.inside is not None:
            values[INSIDE] = json.dumps(self.inside)
        if self.high_precision:
            values[HIGH_PRECISION] = json.dumps(self.high_precision)
        if self.payload is not None:
            values[PAYLOAD] = self.payload
        return values

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings | None:
        """What a process was told; None in a run that is not traced."""
        folder = environment.get(OUT)
        if not folder:
            return None
        return cls(
            folder=place_of(folder),
            steps=_number(environment, STEPS) or 1,
            skip=_number(environment, SKIP) or 0,
            every=_number(environment, EVERY) or 1,
            max_bytes=_number(environment, LIMIT_BYTES),
            resume=bool(_number(environment, RESUME)),
            noise_seed=_number(environment, NOISE_SEED),
            other_kernels=bool(_number(environment, OTHER_KERNELS)),
            split=_number(environment, SPLIT) or 1,
            tap=bool(_number(environment, TAP)),
            inside=_paths(environment, INSIDE),
            blocks=_local(environment, BLOCKS),
            plan=_local(environment, PLAN),
            high_precision=_paths(environment, HIGH_PRECISION) or (),
            payload=environment.get(PAYLOAD) or None,
            sums=_number(environment, SUMS),
            spool=spool_of(environment),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """Where the outcome of a watched run goes, which of its steps are watched, and for what."""

    folder: Path
    skip: int = 0
    every: int = 1
    without: frozenset[SharedKind] = frozenset()

    @property
    def schedule(self) -> Schedule:
        return Schedule(skip=self.skip, every=self.every)

    def to_environment(self) -> dict[str, str]:
        """The variables that say the same to every process of the run."""
        values = {WATCH: str(self.folder.resolve())}
        values |= {SKIP: str(self.skip)} if self.skip else {}
        values |= {EVERY: str(self.every)} if self.every > 1 else {}
        return values | ({WITHOUT: ",".join(sorted(self.without))} if self.without else {})

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> WatchSettings | None:
        """What a process was told; None in a run that is not watched, or traced instead."""
        folder = environment.get(WATCH)
        if not folder or environment.get(OUT):
            return None
        return cls(
            folder=local_path(folder),
            skip=_number(environment, SKIP) or 0,
            every=_number(environment, EVERY) or 1,
            without=frozenset(map(_kind, filter(None, environment.get(WITHOUT, "").split(",")))),
        )


def spool_of(environment: Mapping[str, str]) -> Path:
    """Where on this machine traces are kept until they are uploaded."""
    return Path(environment.get(SPOOL) or tempfile.gettempdir())


def is_asked(environment: Mapping[str, str]) -> bool:
    """Whether a run was started for tracing, or to be watched."""
    return any(environment.get(name) for name in (OUT, WATCH, PACKED))


def unpacked(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The variables by their names, also where nothing but PACKED was handed on."""
    word = environment.get(PACKED)
    if not word or environment.get(OUT) or environment.get(WATCH):
        return environment
    told = unpack(word)
    if told is None or not told.keys() <= {*_VARIABLES}:
        raise UsageError(
            f"{PACKED} is not what `ttrace` gave to the command, or not of this version, found "
            f"{word[:_SHOWN_CHARS]!r}: hand it on to all ranks as it is"
        )
    return without_settings(environment) | told


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment that says nothing of tracing: a run inherits none of another's settings."""
    return {name: value for name, value in environment.items() if name not in _VARIABLES}


def _local(environment: Mapping[str, str], variable: str) -> Path | None:
    path = environment.get(variable)
    return local_path(path) if path else None


def _paths(environment: Mapping[str, str], variable: str) -> tuple[str, ...] | None:
    text = environment.get(variable)
    if not text:
        return None
    try:
        paths = json.loads(text)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise UsageError(f"{variable} must be a list of module paths as JSON, found {text!r}")
    return tuple(paths)


def _number(environment: Mapping[str, str], variable: str) -> int | None:
    text = environment.get(variable)
    if not text:
        return None
    if not text.isdecimal():
        raise UsageError(f"{variable} must be a whole number, found {text!r}")
    return int(text)


def _kind(text: str) -> SharedKind:
    if text not in SharedKind.__members__.values():
        raise UsageError(f"{WITHOUT} must list {', '.join(SharedKind)}, found {text!r}")
    return SharedKind(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Says which steps are recorded, counted from 0: so many, after those that are let pass.

    Schedule(steps=3, skip=10, every=100)      steps 10, 110 and 210
    """

    steps: int = 1
    skip: int = 0
    every: int = 1

    def records(self, number: int) -> bool:
        return number >= self.skip and (number - self.skip) % self.every == 0

    def records_end_of(self, number: int) -> bool:
        """Also of the last step that is let pass: it is where the first recorded one starts."""
        return self.records(number) or number + 1 == self.skip


def pack(variables: Mapping[str, str]) -> str:
    """One word that holds all of these variables."""
    text = json.dumps(dict(variables)).encode()
    return base64.urlsafe_b64encode(text).decode("ascii").rstrip("=")


def unpack(word: str) -> dict[str, str] | None:
    """The variables; None of a word that `pack` did not make."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", word):
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(word + "=" * (-len(word) % 4)))
    except (binascii.Error, ValueError):
        return None
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        return None
    return found
