"""All payloads there are: those of installed packages, fingerprints, full and quantised tensors.

Enters: the name of a payload, a tensor or a record. Leaves: the payload that serves it. Another
package's fault ends no run: it is told where its payload is asked for.
"""

from __future__ import annotations

import functools
from importlib import metadata
from typing import NamedTuple

import torch

from ttrace.core.record import Record
from ttrace.errors import UnsupportedTrace, UsageError
from ttrace.trace.fingerprint import FINGERPRINT
from ttrace.trace.payload import FULL, Decoder, Payload
from ttrace.trace.quantised import QUANTISED

_GROUP = "ttrace.payloads"
_OWN_NAMES = (FULL.name, FINGERPRINT.name, QUANTISED.name)


def payload_named(name: str) -> Payload:
    """The payload that a run asks for; UsageError where no package brings it."""
    payload = _installed().usable.get(name)
    if payload is None:
        raise UsageError(f"the payload {name!r} was asked for, {_lacking(name)}")
    return payload


def payload_for(tensor: torch.Tensor, asked: Payload) -> Payload:
    """The first payload that takes this tensor: of a package, or asked for, or the full one."""
    for payload in _installed().others:
        if payload.name != asked.name and payload.takes(tensor, asked=False):
            return payload
        if payload.name == asked.name and (
            asked.takes(tensor, asked=False) or asked.takes(tensor, asked=True)
        ):
            return asked
    return asked if asked.takes(tensor, asked=True) else FULL


def payload_of(record: Record) -> Decoder:
    """The payload that reads a record; UnsupportedTrace where no package here brings it."""
    if record.payload is None:
        return FULL
    name = record.payload.name
    if name == QUANTISED.name:
        return QUANTISED
    payload = _installed().usable.get(name)
    if payload is None:
        raise UnsupportedTrace(
            f"{record.id} of rank {record.rank} is stored in the payload {name!r}, {_lacking(name)}"
        )
    return payload


def forget_installed() -> None:
    """Look for packages again at the next question: they changed since the last one."""
    _installed.cache_clear()


class _Installed(NamedTuple):
    usable: dict[str, Payload]  # by name, the full one last
    others: tuple[Payload, ...]  # those of packages
    problems: dict[str, str]  # by the name of the entry point; another package's fault ends no run


@functools.cache
def _installed() -> _Installed:
    usable: dict[str, Payload] = {}
    problems: dict[str, str] = {}
    found = {(point.name, point.value): point for point in metadata.entry_points(group=_GROUP)}
    for (name, value), point in sorted(found.items()):
        try:
            payload: Payload = point.load()()
            if payload.name != name or name in (*_OWN_NAMES, *usable):
                raise UsageError(f"its class is called {payload.name!r}, or there is another")
        except Exception as error:  # noqa: BLE001  (another package's fault must not end the run)
            problems[name] = f"{value} failed: {type(error).__name__}: {error}"
        else:
            usable[name] = payload
    own = {FINGERPRINT.name: FINGERPRINT, FULL.name: FULL}
    return _Installed({**usable, **own}, tuple(usable.values()), problems)


def _lacking(name: str) -> str:
    installed = _installed()
    problem = installed.problems.get(name)
    names = ", ".join(sorted(installed.usable))
    why = f"whose class {problem}" if problem else f"but there is only {names}"
    return f"{why}; install the package that brings it (entry point group {_GROUP})"
