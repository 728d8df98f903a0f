"""The tiers of the suite as hooks of pytest: `--tier test`, `--tier flows`, or all of it.

Unmarked tests belong to `make test`: they start no process (one that does fails) and take less
than a second of CPU (one that takes more is reported). Flows are chosen by selection.py, from what
`--record-flows` wrote down when they last ran. At the end stand the slowest files, with what was
expected of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import pytest

from tests.tiers import closing
from tests.tiers.facets import collecting, facets_of_test
from tests.tiers.records import Recorded, file_of, read_pinned, read_recorded, write_recorded
from tests.tiers.selection import Flow, gate, rotating, sentinels
from tests.tiers.watching import cpu_seconds, starts

TIERS = ("test", "flows", "all")
# A test with one of these marks needs packages or programs that `make test` does not install.
NEEDS = ("trainers", "browser", "slurm", "extras")
# The frameworks of adapters, which every target that runs tests installs.
_GIVEN = {"megatron", "deepspeed"}
# A test that asks for one of these runs functions on ranks.
_POOLS = {"pool", "trials", "fresh_pool", "fresh_trials"}
_MOST_SECONDS = 1.0  # chosen: 5,000 unmarked tests are to take two minutes on two cores
_DAY = "TIERS_DAY"  # an ISO date; every worker of a run must take the same
_PROPERTY = "tier"


@dataclass
class Session:
    """What the controlling process hears of tests that ended."""

    measured: dict[str, float] = field(default_factory=dict)
    facets: dict[str, list[str]] = field(default_factory=dict)
    unmarked_seconds: float = 0.0
    long_unmarked: dict[str, float] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    expected_to_fail: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)


_SESSION = pytest.StashKey[Session]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--tier", choices=TIERS, default="all", help="which tests run; all by default")
    group.addoption(
        "--record-flows", action="store_true", help="write what flows cost, and what occurs in them"
    )


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault(_DAY, date.today().isoformat())
    config.stash[_SESSION] = Session()


def is_flow(item: pytest.Item) -> bool:
    """Whether a test starts processes, or needs what not everybody has."""
    return any(item.get_closest_marker(name) for name in ("flow", *NEEDS))


def _packages(item: pytest.Item) -> set[str]:
    """What a test's cases name as needed: `program.needs`, `bug.needs`."""
    callspec = getattr(item, "callspec", None)
    cases = callspec.params.values() if callspec is not None else ()
    return {package for case in cases for package in getattr(case, "needs", ())}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _POOLS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.flow)
        if _packages(item) - _GIVEN:
            item.add_marker(pytest.mark.extras)
    tier = config.getoption("--tier")
    if tier == "all":
        return
    chosen = _chosen()
    runs = {item for item in items if _is_in(tier, item, *chosen)}
    config.hook.pytest_deselected(items=[item for item in items if item not in runs])
    items[:] = [item for item in items if item in runs]


def today() -> date:
    return date.fromisoformat(os.environ[_DAY])


def _chosen() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The ids of all recorded flows, of sentinels, and of what the gate runs beside those."""
    flows = read_recorded().flows
    known = frozenset(flow.id for flow in flows)
    first = sentinels([flow for flow in flows if not needs(flow)])
    return known, first, gate(flows, today(), read_pinned()) - first


def needs(flow: Flow) -> bool:
    """Whether a flow needs what `make test` does not install."""
    return any(facet.startswith("needs:") for facet in flow.facets)


def _is_in(
    tier: str,
    item: pytest.Item,
    known: frozenset[str],
    first: frozenset[str],
    rest: frozenset[str],
) -> bool:
    if not is_flow(item):
        return tier == "test"
    if item.nodeid not in known:  # nobody knows what it would miss
        return tier == "flows"
    return item.nodeid in (first if tier == "test" else rest)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Watch a test from the beginning of its setup to the end of its teardown."""
    with ExitStack() as stack:
        watched = _Watched(item, stack)
        item.stash[_WATCHED] = watched
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield
    watched = item.stash[_WATCHED]
    item.user_properties.append((_PROPERTY, watched.told()))
    if watched.started and not watched.is_flow:
        pytest.fail(
            f"it starts a process ({watched.started[0]}): mark it @pytest.mark.flow, "
            "or do without; tests/README.md says which tier it is then in"
        )


class _Watched:
    """A test that runs."""

    def __init__(self, item: pytest.Item, stack: ExitStack) -> None:
        self.item = item
        self.is_flow = is_flow(item)
        self.started = stack.enter_context(starts())
        self.facets: set[str] = set()
        if self.is_flow and item.config.getoption("--record-flows"):
            self.facets = stack.enter_context(collecting())
        self._before = self._seconds()

    def _seconds(self) -> float:
        """Of an unmarked test those of this process alone, which costs nothing to ask for."""
        times = os.times()
        return cpu_seconds() if self.is_flow else times.user + times.system

    def told(self) -> dict[str, Any]:
        """What the controlling process hears of it."""
        needed = {f"needs:{name}" for name in NEEDS if self.item.get_closest_marker(name)}
        return {
            "id": self.item.nodeid,
            "is_flow": self.is_flow,
            "seconds": self._seconds() - self._before,
            "facets": sorted(map(_in_ascii, self.facets | facets_of_test(self.item) | needed)),
        }


def _in_ascii(facet: str) -> str:
    """Hostile cases have names that cannot be written down."""
    return facet.encode("ascii", "backslashreplace").decode()


_WATCHED = pytest.StashKey[_Watched]()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Hear of a test that ended, in the process that controls the others."""
    session = _current[-1] if _current else None
    if session is None:
        return
    if hasattr(report, "wasxfail"):
        session.expected_to_fail.add(report.nodeid)
    elif report.skipped:
        session.skipped.add(report.nodeid)
    if report.failed:
        session.failed.add(report.nodeid)
    if report.when == "teardown":
        told = dict(report.user_properties).get(_PROPERTY)
        if isinstance(told, dict):
            _hear(session, told)


def _hear(session: Session, told: dict[str, Any]) -> None:
    id_, seconds = told["id"], told["seconds"]
    session.measured[id_] = seconds
    if told["is_flow"]:
        session.facets[id_] = told["facets"]
        return
    session.unmarked_seconds += seconds
    if seconds > _MOST_SECONDS:
        session.long_unmarked[id_] = seconds


# The report of a test does not come with its configuration.
_current: list[Session] = []


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        _current.append(session.config.stash[_SESSION])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was recorded; a flow that was chosen and did not run is no pass."""
    if hasattr(session.config, "workerinput"):
        return
    found = session.config.stash[_SESSION]
    if session.config.getoption("--record-flows"):
        of_trainers = session.config.option.markexpr == "trainers"
        merged = _merged(found, is_whole=_is_whole(session.config), of_trainers=of_trainers)
        write_recorded(merged)
    all_ran = session.config.getoption("--tier") == "all" or not _not_run(found)
    if session.exitstatus == 0 and not all_ran:
        session.exitstatus = 1


def _is_whole(config: pytest.Config) -> bool:
    """Whether all files were asked for, and no test by its name."""
    return config.args_source is config.ArgsSource.TESTPATHS and not config.option.keyword


def _merged(found: Session, *, is_whole: bool, of_trainers: bool) -> Recorded:
    """What was known of other files, and what was found of these.

    A file may have flows of trainers and others, which are recorded by two runs.
    """
    before = read_recorded()
    ran = {id_: facets for id_, facets in found.facets.items() if id_ not in found.skipped}
    # What a test shows that fails as expected is not what its case is there to show.
    ran |= {id_: _of_itself(ran[id_]) for id_ in found.expected_to_fail & ran.keys()}
    files = {file_of(id_) for id_ in ran}
    kept = [
        flow
        for flow in before.flows
        if file_of(flow.id) not in files or ("needs:trainers" in flow.facets) is not of_trainers
    ]
    kept = [flow for flow in kept if flow.id not in ran]
    fresh = [Flow(id_, found.measured[id_], frozenset(facets)) for id_, facets in ran.items()]
    # A run of a few files, or of trainers alone, says nothing of all unmarked tests.
    is_told = is_whole and found.unmarked_seconds > 0
    unmarked = found.unmarked_seconds if is_told else before.unmarked_seconds
    return Recorded((*kept, *fresh), unmarked)


def _of_itself(facets: list[str]) -> list[str]:
    return [facet for facet in facets if facet.startswith(("test:", "needs:"))]


def _not_run(found: Session) -> set[str]:
    """Flows that are there for what occurs in them, and were skipped."""
    return {flow.id for flow in read_recorded().flows} & found.skipped


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    found = config.stash[_SESSION]
    recorded = read_recorded()
    line = terminalreporter.write_line
    for id_, seconds in sorted(found.long_unmarked.items(), key=lambda each: -each[1]):
        line(f"{seconds:5.1f} s of CPU, and not marked as a flow: {id_}", yellow=True)
    tier = config.getoption("--tier")
    if tier == "all":
        return
    for id_ in sorted(_not_run(found)):
        line(f"skipped, although this tier relies on it: {id_}", red=True)
    turn = rotating(recorded.flows, today())
    for id_ in sorted(found.failed & turn):
        line(f"failed in its turn of the rotation; pin it in tests/tiers/pinned.txt: {id_}")
    new = found.facets.keys() - {flow.id for flow in recorded.flows}
    if new:
        line(f"{len(new)} flows are not recorded, so they ran: `make test-record` records them")
    closing.add(found.measured, {flow.id: flow.seconds for flow in recorded.flows})
    for text in closing.slowest():
        line(text)
