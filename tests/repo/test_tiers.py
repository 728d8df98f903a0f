"""What tiers run is chosen well and stays within its budget, whatever the day and the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests.tiers.plugin import needs
from tests.tiers.records import Recorded, read_pinned, read_recorded, write_recorded
from tests.tiers.selection import SHARES, Flow, covering, gate, rotating, sentinels
from tests.tiers.watching import cpu_seconds, starts

ROOT = Path(__file__).parents[2]
WEEK = [date(2026, 1, 5) + timedelta(days) for days in range(7)]
# Two cores are never both busy all the time: at the end one waits for the other's last test.
CORES = 2 * 0.85
TEST_SECONDS = 4 * 60
# Of the 30 minutes of a gate: installing, lint and docs take four, measured in an empty clone.
GATE_SECONDS = 26 * 60
# Not reached yet: what is recorded adds up to 27 minutes on the longest day. This may only fall,
# and goes when it is below the budget.
GATE_SECONDS_SO_FAR = 27.5 * 60


def flow(id_: str, seconds: float, facets: str) -> Flow:
    return Flow(id_, seconds, frozenset(facets.split()))


A, B, C = flow("a", 1, "x"), flow("b", 2, "x y z"), flow("c", 1, "y")


def test_one_flow_that_shows_all_is_better_than_many_that_show_one_each() -> None:
    assert covering([A, B, C], {"x", "y", "z"}) == {"b"}
    assert covering([A, B, C], {"y"}) == {"c"}
    assert covering([A, C], {"x", "y", "z"}) == {"a", "c"}


def test_a_flow_whose_facets_the_others_have_is_not_taken() -> None:
    # First is cheap for two facets; the two that are needed for the others show these as well.
    flows = [flow("first", 1, "p q"), flow("p", 2, "p r"), flow("q", 2, "q s")]
    assert covering(flows, {"p", "q", "r", "s"}) == {"p", "q"}


def test_the_order_of_flows_changes_nothing() -> None:
    flows = read_recorded().flows
    assert gate(flows, WEEK[0], ()) == gate(flows[::-1], WEEK[0], ())
    assert sentinels(flows) == sentinels(flows[::-1])


def test_every_flow_has_one_turn_a_week() -> None:
    flows = [flow(f"tests/a.py::test[{n}]", 1, "x") for n in range(700)]
    turns = [rotating(flows, day) for day in WEEK]
    assert sorted(id_ for turn in turns for id_ in turn) == sorted(each.id for each in flows)
    assert all(60 < len(turn) < 140 for turn in turns)
    assert rotating(flows, WEEK[0] + timedelta(7)) == turns[0]


def test_a_pinned_flow_is_in_every_gate() -> None:
    flows = [flow(name, 1, "x") for name in "abcdefgh"]
    assert all({"h", "c"} <= gate(flows, day, ["h", "c", "gone"]) for day in WEEK)


def test_sentinels_show_each_phase_and_adapter_and_are_cheap() -> None:
    flows = [
        *(flow("small", 0.9, "phase:forward"), flow("large", 9, "phase:forward phase:backward")),
        *(flow("medium", 3, "phase:backward"), flow("other", 5, "adapter:megatron verdict:shape")),
        flow("neither", 4, "verdict:missing"),
    ]
    assert sentinels(flows) == {"small", "medium", "other"}


def test_what_is_cheap_because_others_ran_before_is_no_sentinel() -> None:
    flows = [flow("alone", 0.5, "x"), flow("after others", 0.1, f"x {SHARES}")]
    assert sentinels(flows) == {"alone"}


def test_what_is_recorded_is_read_again(tmp_path: Path) -> None:
    recorded = Recorded((A, B, C), 12.5)
    write_recorded(recorded, tmp_path / "recorded.json")
    assert read_recorded(tmp_path / "recorded.json") == recorded
    assert read_recorded(tmp_path / "none.json") == Recorded()


def test_pins_have_reasons_and_name_flows() -> None:
    pinned, known = read_pinned(), {flow.id for flow in read_recorded().flows}
    assert all(pinned.values())
    assert pinned.keys() <= known


RECORDED = read_recorded()
FIRST = sentinels([each for each in RECORDED.flows if not needs(each)])


def seconds(ids: frozenset[str]) -> float:
    return sum(each.seconds for each in RECORDED.flows if each.id in ids)


def test_make_test_is_within_its_budget() -> None:
    expected = (RECORDED.unmarked_seconds + seconds(FIRST)) / CORES
    assert expected < TEST_SECONDS


@pytest.mark.parametrize("day", WEEK, ids=lambda day: day.strftime("%A"))
def test_the_gate_is_within_its_budget(day: date) -> None:
    chosen = gate(RECORDED.flows, day, read_pinned())
    expected = (RECORDED.unmarked_seconds + seconds(FIRST | chosen)) / CORES
    assert expected < max(GATE_SECONDS, GATE_SECONDS_SO_FAR)


def test_all_that_occurs_anywhere_occurs_in_every_gate() -> None:
    everything = {facet for each in RECORDED.flows for facet in each.facets}
    chosen = gate(RECORDED.flows, WEEK[0], ()) | FIRST
    shown = {f for each in RECORDED.flows if each.id in chosen for f in each.facets}
    assert shown == everything
    for kind in ("verdict", "reason", "mistake", "stage", "phase", "adapter", "payload", "recipe"):
        assert any(facet.startswith(f"{kind}:") for facet in everything), kind


PROBE = """
import subprocess, sys, time
import pytest

def test_quiet(): pass

def test_starts_a_process(): subprocess.run([sys.executable, "-c", ""], check=True)

@pytest.mark.flow
def test_starts_one_and_says_so(): subprocess.run([sys.executable, "-c", ""], check=True)

def test_long():
    end = time.process_time() + 1.1
    while time.process_time() < end: pass
"""


@pytest.mark.flow
def test_an_unmarked_test_starts_no_process_and_is_reported_if_it_is_long(tmp_path: Path) -> None:
    (tmp_path / "test_probe.py").write_text(PROBE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = flow\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.tiers.plugin", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "4 passed" in done.stdout
    assert "1 error" in done.stdout
    assert "test_starts_a_process" in done.stdout
    assert "it starts a process (subprocess.Popen" in done.stdout
    assert "not marked as a flow" in done.stdout
    assert "test_long" in done.stdout


@pytest.mark.flow
def test_cpu_time_is_that_of_all_processes() -> None:
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    before = cpu_seconds()
    with starts() as started:
        subprocess.run([sys.executable, "-c", busy], check=True)
    assert cpu_seconds() - before > 0.4
    assert len(started) == 1
