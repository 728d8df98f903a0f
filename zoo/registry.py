"""All bugs of the zoo, found by family and name; tests and benchmarks share them.

    bugs(Family.MEGATRON)                   in the order of their tables
    find("norm-sync", Family.MEGATRON)
    register(Bug(...))                      one more, from anywhere

A family is a module whose import registers its bugs; that of Megatron needs megatron-core, so each
is imported when it is asked for.
"""

from __future__ import annotations

from importlib import import_module

from ttrace.errors import UsageError
from zoo.bug import Bug, Family

_MODULES = {
    Family.NATIVE: "zoo.native.bugs",
    Family.DEMO: "zoo.demo",
    Family.MEGATRON: "zoo.megatron.bugs",
    Family.LOW_PRECISION: "zoo.lowprecision.bugs",
}

BUGS: dict[tuple[Family, str], Bug] = {}


def register(*bugs: Bug) -> None:
    """Add bugs; a name is taken once in each family."""
    for bug in bugs:
        if (bug.family, bug.name) in BUGS:
            raise UsageError(f"there is a bug {bug.name!r} in {bug.family} already: rename one")
        BUGS[bug.family, bug.name] = bug


def bugs(family: Family) -> tuple[Bug, ...]:
    """All of one family, in the order in which they were registered."""
    import_module(_MODULES[family])
    return tuple(bug for (of, _), bug in BUGS.items() if of is family)


def find(name: str, family: Family) -> Bug:
    """The bug of this name; a `KeyError` that lists the names otherwise."""
    known = {bug.name: bug for bug in bugs(family)}
    if name not in known:
        raise KeyError(f"no bug {name!r} in {family}; known: {', '.join(known)}")
    return known[name]
