"""TensorBoard and Weights & Biases really run: what they wrote is read back."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.invoking import invoke
from tests.support.made_results import made
from ttrace.core.results import CheckResult, Verdict
from ttrace.errors import UsageError
from ttrace.report import trackers
from ttrace.report.json_file import render

FAILING = made(2, wrong_layer=1)
ALL, WRONG = "ttrace/error_over_tolerance/all", "ttrace/wrong"


def with_unmeasured(result: CheckResult) -> CheckResult:
    """One tensor that is not there, one that is infinitely beyond its tolerance."""
    first, second, *others = result.tensors
    missing = replace(first, verdict=Verdict.MISSING, ratio=None, statistics=None)
    beyond = replace(second, verdict=Verdict.MISMATCH, ratio=math.inf)
    return replace(result, tensors=(missing, beyond, *others))


def test_scalars_hold_the_worst_of_every_kind_and_count_failures() -> None:
    found = trackers.scalars(FAILING)
    assert found[ALL, 0] == max(t.ratio for t in FAILING.tensors if t.ratio is not None)
    assert found[WRONG, 0] == len(FAILING.failures)
    assert trackers.scalars(made(2))[WRONG, 0] == 0


def test_what_cannot_be_measured_is_not_lost() -> None:
    odd = with_unmeasured(made(2))
    assert trackers.scalars(odd)[WRONG, 0] == 2
    assert trackers.scalars(odd)[ALL, 0] == math.inf
    assert [row[-2:] for row in trackers.rows(odd)[:2]] == [[None, "missing"], [None, "mismatch"]]


def test_tensorboard_reads_what_the_report_wrote(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = [tensor for tensor in FAILING.tensors if tensor.id.step == 0]
    later = [replace(t, id=replace(t.id, step=1), ratio=0.5, verdict=Verdict.PASS) for t in first]
    (tmp_path / "result.json").write_text(render(replace(FAILING, tensors=(*first, *later))))
    done = invoke("report", tmp_path / "result.json", "--tensorboard", tmp_path / "events")
    done.require(1, "scalars in")
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    worst = trackers.scalars(FAILING)[ALL, 0]
    assert [(e.step, e.value) for e in events.Scalars(ALL)] == [
        (0, pytest.approx(worst)),
        (1, 0.5),
    ]
    assert [(e.step, e.value) for e in events.Scalars(WRONG)] == [
        (0, len(FAILING.failures)),
        (1, 0),
    ]


@pytest.mark.filterwarnings("ignore")  # of a package that is not ours
def test_wandb_keeps_the_table_of_an_offline_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="pip install wandb; too large for every test run")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(project="ttrace", mode="offline", dir=str(tmp_path))
    run.log({"ttrace": trackers.wandb_table(with_unmeasured(FAILING))})
    run.finish()
    (file,) = tmp_path.rglob("*.table.json")
    kept = json.loads(file.read_text())
    assert kept["columns"] == trackers.COLUMNS
    assert kept["data"] == trackers.rows(with_unmeasured(FAILING))


def test_absent_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match="pip install tensorboard"):
        trackers.write_scalars(FAILING, tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match="pip install wandb"):
        trackers.wandb_table(FAILING)
