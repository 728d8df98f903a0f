"""Sentences decide nothing: with every one replaced by its key, a result stays what it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ttrace
from tests.support.capturing import record
from tests.support.isolated_results import named
from tests.support.made_results import made
from tests.support.plain_results import all_of, blame, gained
from tests.support.printing import printed
from ttrace.core.blame import Culprit, Expected, Mistake, Phase, Reason, Stage
from ttrace.core.finding import Finding, Topic
from ttrace.core.ids import Kind
from ttrace.core.results import CheckResult, Lost, StepPart, Verdict
from ttrace.core.statistics import Statistic
from ttrace.report import forms
from ttrace.report.catalogue.culprits import EXPECTED, MISTAKES, PHASES, REASONS, STAGES
from ttrace.report.catalogue.notes import LOST, PARTS, TOPICS
from ttrace.report.catalogue.sentences import Line
from ttrace.report.catalogue.tensors import FINDINGS, KIND_TERMS, STATISTICS, VERDICTS

TABLES: dict[type[StrEnum], dict[Any, Any]] = {
    Stage: STAGES,
    Phase: PHASES,
    Reason: REASONS,
    Mistake: MISTAKES,
    Expected: EXPECTED,
    Finding: FINDINGS,
    Statistic: STATISTICS,
    Verdict: VERDICTS,
    Kind: KIND_TERMS,
    Topic: TOPICS,
    StepPart: PARTS,
    Lost: LOST,
}


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        _replace_all(patch)
        yield


def _replace_all(patch: pytest.MonkeyPatch) -> None:
    for table in TABLES.values():
        for member, row in table.items():
            patch.setitem(table, member, _with_key(row, f"<{type(member).__name__}.{member.name}>"))
    for sentence in Line:
        patch.setattr(sentence, "_value_", f"<Line.{sentence.name}>")


def _with_key(row: Any, key: str) -> Any:
    if isinstance(row, str):
        return key
    words = [f.name for f in fields(row) if type(getattr(row, f.name)) is str]
    return replace(row, **{name: key for name in words if getattr(row, name)})


@pytest.mark.parametrize("enum", TABLES, ids=lambda enum: enum.__name__)
def test_every_member_has_a_row(enum: type[StrEnum]) -> None:
    assert set(TABLES[enum]) == set(enum)


def test_with_keys_a_report_is_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The companion: the sentences that a report is made of come from the tables alone."""
    result = made(2, wrong_layer=1)
    assert "is the first wrong" in printed(result)
    with monkeypatch.context() as patch:
        _replace_all(patch)
        lines = printed(result).splitlines()
    assert lines[0] == "<Line.NOT_EQUIVALENT>"
    assert "why       <Reason.GRADIENT_OF_INPUT>" in lines
    assert "<Topic.LOSS_SCALE>" in lines


def test_every_member_has_its_words() -> None:
    assert all(row.badge for row in (*MISTAKES.values(), *EXPECTED.values()))
    assert all(row.hint for table in (MISTAKES, STAGES, PHASES) for row in table.values())
    assert all(row.term for row in STATISTICS.values())
    assert all(row.term for row in VERDICTS.values())
    assert all(KIND_TERMS.values())


LOCAL = all_of("main_grad").split()


def _plain() -> list[tuple[Culprit, ...]]:
    factor = dict.fromkeys(LOCAL, Finding.CONSTANT_FACTOR)
    return [
        blame("a:output.0 b.c:output.0"),
        blame("b.d:input.0"),
        blame("a:grad_output.0", consumers={"a:grad_output.0": ("b.d:grad_input.0",)}),
        blame(all_of("param")),
        blame(
            all_of("main_grad"),
            statistics=dict.fromkeys(LOCAL, gained(2.0)),
            findings=factor,
        ),
        blame(dict.fromkeys(LOCAL, Verdict.CONFLICT)),
        blame(":grad_norm"),
        blame(dict.fromkeys(all_of("optimizer").split(), Verdict.MISSING)),
        blame("e:param_after.weight b.d:buffer.mean"),
    ]


def _isolated() -> list[object]:
    return [
        named("e:grad_input.0 a:grad.weight"),
        named("a:accumulated_grad.weight a:main_grad.weight e:main_grad.weight"),
        named({"e:grad_input.0": Verdict.MISMATCH, "e:grad.weight": Verdict.CONFLICT}),
    ]


def test_made_results_are_blamed_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    before = (_plain(), _isolated())
    assert all(before[0])
    with monkeypatch.context() as patch:
        _replace_all(patch)
        assert (_plain(), _isolated()) == before


class Doubled(nn.Linear):
    """A linear with a bias that is added once too often, as row-parallel ones have had."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.bias


def _trace(folder: Path, *, wrong: bool = False, noise: int | None = None) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), (Doubled if wrong else nn.Linear)(8, 8), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.randn(32, 6)).square().mean().backward()
        optimizer.step()

    record(folder, model, step, optimizer, noise_seed=noise)
    return folder


def _without_sentences(result: CheckResult) -> tuple[object, ...]:
    tensors = tuple(replace(tensor, order=0) for tensor in result.tensors)
    return result.exit_code, result.culprits, tensors, result.details, result.notes


def test_a_bug_in_traces_is_judged_blamed_and_diagnosed_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, noisy = _trace(tmp_path / "reference"), _trace(tmp_path / "noisy", noise=1)
    wrong = _trace(tmp_path / "wrong", wrong=True)
    before = ttrace.check(reference, wrong, perturbed=[noisy])
    (culprit,) = before.culprits
    assert culprit.blame.modules == ("1",)
    assert culprit.diagnosis is not None
    assert culprit.diagnosis.mistake is Mistake.SAME_VECTOR_IN_EVERY_ROW
    with monkeypatch.context() as patch:
        _replace_all(patch)
        after = ttrace.check(reference, wrong, perturbed=[noisy])
        assert "<Mistake.SAME_VECTOR_IN_EVERY_ROW>" in printed(after)
    assert _without_sentences(after) == _without_sentences(before)


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("name", ["html", "junit", "markdown", "json", "terminal", "github"])
def test_every_form_can_be_made_of_keys(name: str, tmp_path: Path) -> None:
    form = forms.find_form(name)
    file = tmp_path / "report"
    with file.open("w") as out:
        form.write(made(2, wrong_layer=1), str(tmp_path / "form") if form.target else "", out)
    text = file.read_text() + "".join(f.read_text() for f in tmp_path.glob("form"))
    assert "Line.NOT_EQUIVALENT" in text or "Reason.GRADIENT_OF_INPUT" in text
