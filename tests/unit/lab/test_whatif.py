"""What if they computed in high precision: the part that is spoilt carries the gap."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import ttrace
from tests.support.coarse_layer import train
from ttrace.core.quantised import Undone
from ttrace.core.whatif import Answer, WhatIf
from ttrace.errors import CannotCompare, UsageError
from ttrace.lab.functions import WorkerPool
from ttrace.lab.run import Function, TracedRun
from ttrace.lab.whatif import undone_in

pytestmark = pytest.mark.flow  # many runs
REFERENCE = Function(train, arguments=(None, False))
FINE = 1e-4  # of a share: what fp32 leaves of scales that are powers of two


class Here:
    """Runs functions in workers that are there already."""

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool
        self.runs: list[TracedRun] = []

    def __call__(self, run: TracedRun) -> None:
        self.runs.append(run)
        assert isinstance(run.work, Function)
        variables = run.settings.to_environment()
        self.pool.run(1, run.work.train, *run.work.arguments, environment=variables)


@pytest.fixture
def here(pool: WorkerPool) -> Here:
    return Here(pool)


def asked(here: Here, out: Path, spoilt: str | None, *patterns: str, by: str = "layer") -> WhatIf:
    candidate = Function(train, arguments=(spoilt,))
    return ttrace.whatif(REFERENCE, candidate, patterns, out=out / "out", by=by, execute=here)


@pytest.mark.parametrize("spoilt", ["layers.1", "layers.2"])
def test_the_layer_with_coarse_scales_carries_the_gap(
    here: Here, tmp_path: Path, spoilt: str
) -> None:
    found = asked(here, tmp_path, spoilt, "layers.*")
    assert found.answer is Answer.ONE
    assert found.groups[0].name == spoilt
    assert {group.name for group in found.groups} == {f"layers.{number}" for number in range(3)}
    assert found.gradient_closed(found.groups[0]) > 3 * found.gradient_closed(found.groups[1])
    assert found.gradient_closed(found.together) == pytest.approx(1, abs=FINE)
    assert abs(found.together.reading.loss_gap) < FINE * abs(found.candidate.loss_gap)
    assert found.together.changed == sum(group.changed for group in found.groups)


def test_of_modules_the_one_with_coarse_scales(here: Here, tmp_path: Path) -> None:
    spoilt = "layers.1.feed_forward.w2"
    found = asked(here, tmp_path, spoilt, "layers.1.feed_forward.*", by="module")
    assert found.groups[0].modules == (spoilt,)
    assert len(found.groups) == 3
    asked_of = [run.settings.high_precision for run in here.runs[3:]]
    assert sorted(asked_of) == [(f"layers.1.feed_forward.{name}",) for name in ("w1", "w2", "w3")]


def test_a_gap_that_no_pattern_reaches_is_elsewhere(here: Here, tmp_path: Path) -> None:
    found = asked(here, tmp_path, "layers.0", "layers.2", by="layer")
    assert found.answer is Answer.ELSEWHERE


class TestNoAnswer:
    def test_where_nothing_is_quantised(self, here: Here, tmp_path: Path) -> None:
        with pytest.raises(CannotCompare, match="nothing in norm, output is quantised"):
            asked(here, tmp_path, None, "norm", "output")

    def test_where_no_module_matches(self, here: Here, tmp_path: Path) -> None:
        with pytest.raises(CannotCompare, match=r"no module matches blocks\.\*; .* layers"):
            asked(here, tmp_path, None, "blocks.*")

    def test_where_codes_are_unknown(self, here: Here, tmp_path: Path) -> None:
        with pytest.raises(CannotCompare, match="could be undone: codes whose values"):
            ttrace.whatif(
                Function(train_stored, arguments=(False,)),
                Function(train_stored, arguments=(True,)),
                ["*"],
                out=tmp_path / "out",
                execute=here,
            )

    def test_of_no_pattern_or_other_groups(self, here: Here, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no pattern was given"):
            asked(here, tmp_path, None)
        with pytest.raises(UsageError, match="--by must be layer or module, found 'rank'"):
            asked(here, tmp_path, None, "*", by="rank")
        assert not here.runs


class Stored(nn.Linear):
    """With a factor that is there in codes alone."""

    codes: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.codes.float()


def train_stored(in_codes: bool) -> None:
    torch.manual_seed(0)
    model = Stored(4, 4)
    values = torch.rand(4)
    model.codes = values.to(torch.float8_e4m3fn) if in_codes else values
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()


def test_a_run_without_the_setting_undoes_nothing(here: Here, tmp_path: Path) -> None:
    found = asked(here, tmp_path, "layers.1", "layers.1.*")
    assert found.groups
    assert undone_in(tmp_path / "out/candidate") == {}
    undone = undone_in(tmp_path / "out/high-all")
    assert undone["layers.1.attention.wq"] == Undone(module="layers.1.attention.wq", changed=6)
