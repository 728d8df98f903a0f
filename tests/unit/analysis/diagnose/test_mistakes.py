"""Every kind of mistake is recognised, and neither rounding nor another error is taken for one."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.logical import write_logical
from tests.support.made_results import tensor
from ttrace.analysis.diagnose.examine import Examiner, earlier, with_diagnoses
from ttrace.analysis.diagnose.mistakes import diagnose, installed_guesses, nearest
from ttrace.analysis.diagnose.suspect import Suspect
from ttrace.core.blame import Diagnosis, Mistake
from ttrace.core.evidence import Detail
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.mesh import NO_MESH, Mesh
from ttrace.report import wording
from ttrace.trace.spans import SpanReader

SHAPE = (8, 128)
NOISE = 1e-6  # relative, as fp32 sums have
SIZES = {"dp": 2, "ranks": 4}
HALVES: dict[tuple[int, ...], list[tuple[slice, ...]]] = {
    (0,): [(slice(0, 8),)],
    (1,): [(slice(8, 16),)],
}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


def noisy(values: Tensor, seed: int = 1) -> Tensor:
    return values + NOISE * values.norm() / values.numel() ** 0.5 * random(*values.shape, seed=seed)


WHOLE = random(16, 24, 16)


def suspect(found: Tensor, **more: Any) -> Suspect:
    plain = Suspect(
        expected=WHOLE,
        found=found,
        allowed=3 * NOISE * float(WHOLE.norm()),
        parts=HALVES,
        cuts=(2, 1, 1),
        sizes=SIZES,
    )
    return replace(plain, **more)


def swapped(values: Tensor, *order: int) -> Tensor:
    return torch.cat([values.chunk(len(order))[part] for part in order])


TERM = random(16, 24, 16, seed=5)
VECTOR = random(16, seed=6)
MISTAKES = {
    "it is all zero": suspect(torch.zeros_like(WHOLE)),
    "it equals its value before the step": suspect(WHOLE + 1, before=WHOLE + 1),
    "their sum equals the reference: an all-reduce is missing": suspect(
        TERM, total=noisy(WHOLE), holders=4
    ),
    "their mean equals the reference: an average is missing": suspect(
        TERM, total=4 * noisy(WHOLE), holders=4
    ),
    "parts 0 and 1 of 2 of dim 0 are exchanged": suspect(noisy(swapped(WHOLE, 1, 0))),
    "the 4 parts of dim 0 stand in another order: 0, 2, 3, 1": suspect(
        noisy(swapped(WHOLE, 0, 2, 3, 1))
    ),
    "dims 0 and 2 are exchanged: it is transposed": suspect(noisy(WHOLE.transpose(0, 2))),
    "one place later along dim 1": suspect(noisy(WHOLE.roll(1, dims=1))),
    "one place earlier along dim 1": suspect(noisy(WHOLE.roll(-1, dims=1))),
    "its sign is the opposite": suspect(noisy(-WHOLE)),
    "4 times the reference, and 4 is the number of ranks: a sum": suspect(noisy(4 * WHOLE)),
    "1/2 of the reference, and 2 is the size of dp: divided": suspect(noisy(WHOLE / 2)),
    "a factor of its own: 1.5 on rank 0, 0.7 on rank 1": suspect(
        noisy(torch.cat([1.5 * WHOLE[:8], 0.7 * WHOLE[8:]]))
    ),
    "every row is off by the same vector": suspect(noisy(WHOLE + VECTOR)),
    "every value is one of bfloat16": suspect(WHOLE.bfloat16().double()),
    "every value is one of float8_e4m3fn": suspect(WHOLE.to(torch.float8_e4m3fn).double()),
}


@pytest.mark.parametrize("says", MISTAKES)
def test_mistake_is_named(says: str) -> None:
    found = diagnose(MISTAKES[says])
    assert found is not None
    assert says in wording.diagnosis(found)


@pytest.mark.parametrize("says", MISTAKES)
def test_the_same_mistake_beside_another_error_is_not_named(says: str) -> None:
    """Undoing it would not make the tensor right."""
    made = MISTAKES[says]
    other = 0.3 * random(*WHOLE.shape, seed=9)
    total = None if made.total is None else made.total + other
    assert diagnose(replace(made, found=made.found + other, total=total)) is None


NEAR = {name: made for name, made in MISTAKES.items() if "one of" not in name}


@pytest.mark.parametrize("says", [n for n in NEAR if "zero" not in n and "before" not in n])
def test_the_same_mistake_beside_a_small_error_is_the_nearest(says: str) -> None:
    made = MISTAKES[says]
    other = 0.1 * made.error / math.sqrt(WHOLE.numel()) * random(*WHOLE.shape, seed=9)
    total = None if made.total is None else made.total + other * made.holders
    found = nearest(replace(made, found=made.found + other, total=total))
    assert found is not None
    whole = diagnose(made)
    assert whole is not None
    assert found.diagnosis.mistake is whole.mistake
    assert 0.75 < found.explained < 1


def test_nothing_is_near_to_an_error_at_random() -> None:
    assert nearest(suspect(WHOLE + 0.5 * TERM)) is None
    assert nearest(suspect(WHOLE * torch.nan)) is None


def test_one_of_the_terms_of_a_sum_is_recognised_by_its_size() -> None:
    """The other term is nowhere; half of the elements missing looks the same but for its zeros."""
    terms = [random(*WHOLE.shape, seed=seed) for seed in (20, 21)]
    found = nearest(suspect(terms[0], expected=terms[0] + terms[1], added=("dp",)))
    assert found is not None
    assert found.diagnosis == Diagnosis(mistake=Mistake.ONE_TERM_OF_A_SUM, size=2, axes=("dp",))
    assert nearest(suspect(terms[0][0, 0], expected=terms[1][0, 0], cuts=(1,))) is None
    halved = WHOLE.clone()
    halved.view(-1)[::2] = 0
    assert nearest(suspect(halved, added=("dp",))) is None
    assert nearest(suspect(terms[0], expected=terms[0] + terms[1])) is None


@pytest.mark.parametrize("seed", range(10, 15))
def test_rounding_looks_like_nothing(seed: int) -> None:
    assert (
        diagnose(suspect(noisy(WHOLE, seed), total=2 * noisy(WHOLE, seed + 9), holders=2)) is None
    )


def test_values_of_a_lower_precision_in_both_runs_are_not_blamed() -> None:
    both = suspect((WHOLE + 0.1 * TERM).bfloat16().double(), expected=WHOLE.bfloat16().double())
    assert diagnose(both) is None


def test_nan_and_emptiness_have_no_diagnosis() -> None:
    assert diagnose(suspect(WHOLE * torch.nan)) is None
    nothing = torch.empty(0, 4, dtype=torch.float64)
    assert diagnose(suspect(nothing, expected=nothing)) is None


ID = TensorId.parse("step0/a:param.weight")


def examine(folder: Path, whole: Tensor, parts: list[Tensor], mesh: Mesh = NO_MESH) -> Detail:
    """Every rank says that it holds the whole."""
    full = Layout.full(SHAPE)
    reference = write_logical(folder / "reference", {0: (full, whole)})
    candidate = write_logical(
        folder / "candidate", {r: (full, part) for r, part in enumerate(parts)}
    )
    with SpanReader(folder / "reference") as ours, SpanReader(folder / "candidate") as theirs:
        examiner = Examiner(ours, theirs)
        return examiner.examine(tensor(ID, 0, 10.0), reference, candidate, mesh=mesh)


def test_axis_along_which_an_all_reduce_is_missing_is_found(tmp_path: Path) -> None:
    """Two data-parallel ranks repeat what two tensor-parallel ones hold."""
    whole, first = (random(*SHAPE, seed=seed).float() for seed in range(2))
    mesh = Mesh(axes={"dp": 2, "tp": 2}, coordinates=((0, 0), (0, 1), (1, 0), (1, 1)))
    found = examine(tmp_path / "replicas", whole, [first, whole - first] * 2, mesh)
    assert found.diagnosis == Diagnosis(mistake=Mistake.MISSING_ALL_REDUCE, axes=("tp",))


def test_unreduced_parts_in_traces_are_recognised(tmp_path: Path) -> None:
    whole, first, second = (random(*SHAPE, seed=seed).float() for seed in range(3))
    terms = [first, second, whole - first - second]
    found = examine(tmp_path / "terms", whole, terms)
    assert found.diagnosis == Diagnosis(mistake=Mistake.MISSING_ALL_REDUCE)
    assert examine(tmp_path / "whole", whole, [whole, whole, whole]).diagnosis is None
    assert examine(tmp_path / "other", whole, [first, second, whole]).diagnosis is None


@pytest.mark.parametrize(
    ("now", "before"),
    [
        ("step0/a:param_after.weight", "step0/a:param.weight"),
        ("step2/a:main_grad.weight", "step1/a:main_grad.weight"),
        ("step0/a:main_grad.weight", None),
        ("step1/a:output.0", "step0/a:output.0"),
        ("step0/a:output.0", None),
    ],
)
def test_what_a_tensor_should_be_an_update_of(now: str, before: str | None) -> None:
    assert earlier(TensorId.parse(now)) == (before and TensorId.parse(before))


def test_tensor_that_was_not_updated_is_recognised_in_traces(tmp_path: Path) -> None:
    """Both tensors are of the candidate's trace; the twin was updated, wrongly."""
    old, new = (random(*SHAPE, seed=seed).float() for seed in range(2))
    full = Layout.full(SHAPE)
    reference = write_logical(tmp_path / "reference", {0: (full, new)})
    candidate = write_logical(tmp_path / "candidate", {0: (full, old)})
    wrong = write_logical(tmp_path / "wrong", {0: (full, 0.5 * old + new)})
    with SpanReader(tmp_path / "reference") as ours, SpanReader(tmp_path / "candidate") as theirs:
        examiner = Examiner(ours, theirs)
        found = examiner.examine(tensor(ID, 0, 10.0), reference, candidate, before=candidate)
    assert found.diagnosis == Diagnosis(mistake=Mistake.NOT_UPDATED)
    with SpanReader(tmp_path / "reference") as ours, SpanReader(tmp_path / "wrong") as theirs:
        found = Examiner(ours, theirs).examine(tensor(ID, 0, 10.0), reference, wrong)
    assert found.diagnosis is None


def test_culprit_says_what_its_evidence_looks_like() -> None:
    from tests.support.made_results import made

    result = made(2, wrong_layer=1)
    (culprit,) = result.culprits
    detail = next(detail for detail in result.details if detail.id == culprit.evidence[0])
    sign = Diagnosis(mistake=Mistake.OPPOSITE_SIGN)
    (told,) = with_diagnoses(result.culprits, [replace(detail, diagnosis=sign)])
    assert told == replace(culprit, diagnosis=sign)
    assert with_diagnoses(result.culprits, [detail]) == (replace(culprit, diagnosis=None),)


def test_another_package_adds_a_kind_of_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One function under an entry point; its diagnosis brings its sentence with it."""
    (tmp_path / "clipping_guess.py").write_text(
        "from ttrace.core.blame import Diagnosis\n"
        "def clamped(suspect):\n"
        "    if suspect.fits(suspect.found, suspect.expected.clamp(-1, 1)):\n"
        "        yield Diagnosis(mistake='clamped', sentence='values beyond 1 are cut off')\n"
    )
    folder = tmp_path / "clipping_guess-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: clipping-guess\nVersion: 1.0\n")
    points = "[ttrace.mistakes]\nclamped = clipping_guess:clamped\n"
    (folder / "entry_points.txt").write_text(points)
    clamped = suspect(noisy(WHOLE.clamp(-1, 1)))
    assert diagnose(clamped) is None
    monkeypatch.syspath_prepend(tmp_path)
    installed_guesses.cache_clear()
    try:
        found = diagnose(clamped)
        assert found == Diagnosis(mistake="clamped", sentence="values beyond 1 are cut off")
        assert wording.diagnosis(found) == "values beyond 1 are cut off"
        assert diagnose(suspect(noisy(-WHOLE))) == Diagnosis(mistake=Mistake.OPPOSITE_SIGN)
    finally:
        installed_guesses.cache_clear()


def test_bfloat16_is_not_taken_for_rounded_to_float16() -> None:
    """Small values leave float16's range, not its precision."""
    expected = random(64, 16).bfloat16().double() * 2.0**-23
    found = random(64, 16, seed=3).bfloat16().double()
    plain = replace(suspect(found), expected=expected, parts={}, sizes={})
    assert diagnose(plain) is None
    coarse = found.to(torch.float8_e4m3fn).double()
    rounded = diagnose(replace(plain, found=coarse))
    assert rounded == Diagnosis(mistake=Mistake.ROUNDED_LOWER, dtype="float8_e4m3fn")


@pytest.mark.parametrize(
    ("total", "mistake"),
    [
        (4.0, None),  # four norms of 1 beside that of the whole, 2: their sum is twice as large
        (2.0, Mistake.MISSING_ALL_REDUCE),
        (8.0, Mistake.MISSING_AVERAGE),
    ],
)
def test_of_a_few_numbers_only_the_plain_sum_and_mean_count(
    total: float, mistake: Mistake | None
) -> None:
    one = torch.ones(1).double()
    few = Suspect(
        expected=2 * one, found=one, allowed=1e-3, total=total * one, holders=4, parts={}, sizes={}
    )
    found = diagnose(few)
    assert (found and found.mistake) == mistake


def test_ranks_that_disagree_are_not_said_to_be_off_by_a_factor() -> None:
    half = suspect(WHOLE / 2, parts={})
    found = diagnose(half)
    assert found is not None
    assert found.mistake is Mistake.DIVIDED_TOO_OFTEN
    assert diagnose(replace(half, total=random(16, 24, 16, seed=9), holders=2)) is None
