"""`ttrace plan --estimate` says what a stated run costs, and writes nothing but what is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.invoking import invoke


@pytest.fixture(scope="module")
def rates(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of this machine, measured once."""
    file = tmp_path_factory.mktemp("rates") / "rates.json"
    invoke("plan", "--estimate", traces / "good", "--json", file).require(0, "from", "records")
    return file


def test_an_estimate_as_text_and_as_json(traces: Path, rates: Path) -> None:
    stated = ("--axes", "dp=4", "--steps", "2", "--capture", "auto", "--workers", "2")
    forms = ("--rates", rates, "--disk-rate", "2GB", "--json", "-")
    found = invoke("plan", "--estimate", traces / "good", *stated, *forms)
    assert found.code == 3  # these rates are of full tensors
    assert "rates of --capture full" in found.err
    found = invoke("plan", "--estimate", traces / "good", *stated[:4], *forms)
    found.require(0, "4 ranks (dp 4), 2 steps", "at 2 GB a second", "assumed")
    assert found.json["ranks"] == 4
    assert found.json["rates"]["disk_rate"] == 2e9
    known = json.loads(rates.read_text())
    assert found.json["records"]["low"] == 8 * known["records"]["low"]


def test_what_does_not_go_together_is_refused(traces: Path, tmp_path: Path) -> None:
    good = traces / "good"
    invoke("plan", "--estimate", good, good).require(3, "takes one trace")
    invoke("plan", good).require(3, "--out; with --estimate one trace is enough")
    invoke("plan", good, good).require(3, "plans need")
    invoke("plan", "--estimate", good, "--size", "8").require(3, "OLD=NEW")
    invoke("plan", "--estimate", good, "--capture", "none").require(3, "--capture must be")
    invoke("plan", "--estimate", tmp_path).require(2, "is not a trace")
