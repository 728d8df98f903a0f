"""The verdict on a pair: which statistic decides, where, and what the special cases come to."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.grains import measure
from tests.support.judging import judged
from ttrace.analysis.compare import Measured
from ttrace.analysis.compare.measured import Disagreement
from ttrace.analysis.tolerance import Yardstick, tolerances
from ttrace.core.finding import Finding
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.logical import Alignment, LogicalTensor, Piece
from ttrace.core.record import Record
from ttrace.core.results import TensorResult, Verdict
from ttrace.core.statistics import Statistic
from ttrace.report import wording

ID = TensorId.parse("step0/a:output.0")
SHAPE = (4, 64, 128)


def logical(tensor: torch.Tensor) -> LogicalTensor:
    shape = tuple(tensor.shape)
    dtype = str(tensor.dtype).removeprefix("torch.")
    layout = Layout.full(shape)
    record = Record(id=ID, rank=0, sequence=1, dtype=dtype, shape=shape, layout=layout)
    return LogicalTensor(shape=shape, pieces=(Piece(layout=layout, records=(record,)),))


def verdict(
    reference: torch.Tensor, candidate: torch.Tensor, perturbed: torch.Tensor
) -> TensorResult:
    yardstick = Yardstick(
        dtype=str(reference.dtype).removeprefix("torch."),
        volume=reference.numel(),
        sequence=1,
        noise=(measure(reference, perturbed),),
    )
    found = Measured(statistics=measure(reference, candidate))
    alignment = Alignment(id=ID, reference=logical(reference), candidate=logical(candidate))
    return judged(alignment, found, tolerances({ID: yardstick}))


def noisy(seed: int, relative: float = 0.01, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    factor = 1 + relative * torch.randn(shape, generator=generator)
    return values(shape) * factor


def values(shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_rounding_passes_and_every_statistic_was_judged() -> None:
    result = verdict(values(), noisy(1), noisy(2))
    assert result.verdict is Verdict.PASS
    special = {Statistic.CHOICES, Statistic.GRAIN, Statistic.COINCIDENCE}
    assert {j.reading.statistic for j in result.judgements} == set(Statistic) - special
    assert result.ratio == max(j.ratio for j in result.judgements) < 1


def spoil_row(candidate: torch.Tensor) -> None:
    candidate[2, 17] *= 1.2


def spoil_channel(candidate: torch.Tensor) -> None:
    candidate[..., 40] *= 1.1


def spoil_element(candidate: torch.Tensor) -> None:
    candidate[1, 3, 9] += 0.8


def spoil_gain(candidate: torch.Tensor) -> None:
    candidate *= 1.002


def spoil_shift(candidate: torch.Tensor) -> None:
    candidate += 0.002


def spoil_half(candidate: torch.Tensor) -> None:
    """Half of the elements are zero: the average is half, but no factor is."""
    candidate.view(-1)[::2] = 0


def test_an_average_is_not_called_a_factor() -> None:
    candidate = noisy(1)
    spoil_half(candidate)
    result = verdict(values(), candidate, noisy(2))
    assert result.finding is Finding.AVERAGE_FACTOR
    assert wording.finding(result) == "0.50 x the reference on average"


@pytest.mark.parametrize(
    ("spoil", "statistic", "finding", "words"),
    [
        (spoil_row, Statistic.ROW, Finding.PLACE, "row (2, 17) of dims 0, 1"),
        (spoil_channel, Statistic.SLICE, Finding.PLACE, "slice 40 of dim 2"),
        (spoil_element, Statistic.ELEMENT, Finding.PLACE, "element (1, 3, 9)"),
        (spoil_gain, Statistic.GAIN, Finding.FACTOR, "a factor of 1.0020"),
        (spoil_shift, Statistic.SHIFT, Finding.SHIFT, "shifted by 0.0019"),
    ],
)
def test_an_error_that_the_norm_hides_is_found_and_placed(
    spoil: object, statistic: Statistic, finding: Finding, words: str
) -> None:
    candidate = noisy(1)
    assert verdict(values(), candidate, noisy(2)).verdict is Verdict.PASS
    spoil(candidate)  # type: ignore[operator]
    result = verdict(values(), candidate, noisy(2))
    assert result.verdict is Verdict.MISMATCH
    assert result.worst is not None
    assert result.worst.reading.statistic is statistic
    assert result.finding is finding
    assert wording.finding(result).startswith(words)
    norm = next(j for j in result.judgements if j.reading.statistic is Statistic.NORM)
    assert norm.ratio < 1


def test_an_error_is_told_in_eps_of_the_part_it_is_in() -> None:
    candidate = values()
    candidate[2, 17] += 0.5 * candidate[2, 17]
    result = verdict(values(), candidate, noisy(2))
    by_statistic = {j.reading.statistic: j.eps for j in result.judgements}
    eps = torch.finfo(torch.float32).eps
    expected = 0.5 * math.sqrt(256)  # half of one row in 256
    assert by_statistic[Statistic.ROW] == pytest.approx(0.5 / eps, rel=0.2)
    assert by_statistic[Statistic.NORM] == pytest.approx(expected / 256 / eps, rel=0.2)


class TestSpecialCases:
    """One test for every row of the table in docs/reference/statistics.md."""

    def test_both_zero_are_equal(self) -> None:
        zeros = torch.zeros(SHAPE)
        assert verdict(zeros, zeros.clone(), zeros.clone()).finding is Finding.EQUAL

    def test_zero_reference_has_no_gain_and_no_relative_error(self) -> None:
        found = measure(torch.zeros(SHAPE), torch.ones(SHAPE))
        assert (found.relative_error, found.along_reference) == (math.inf, 0.0)
        assert verdict(torch.zeros(SHAPE), torch.ones(SHAPE), torch.zeros(SHAPE)).verdict is (
            Verdict.MISMATCH
        )

    def test_zero_candidate_has_a_gain_of_zero(self) -> None:
        found = measure(torch.ones(SHAPE), torch.zeros(SHAPE))
        assert found.gain == 0.0
        assert found.relative_error == pytest.approx(1.0)

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_nonfinite_candidate_is_a_verdict_of_its_own(self, bad: float) -> None:
        candidate = noisy(1)
        candidate[0, 0, 0] = bad
        result = verdict(values(), candidate, noisy(2))
        assert (result.verdict, result.statistics.nonfinite_candidate) == (Verdict.NONFINITE, 1)  # type: ignore[union-attr]

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_nonfinite_reference_cannot_be_decided(self, bad: float) -> None:
        reference = values()
        reference[0, 0, 0] = bad
        assert verdict(reference, noisy(1), noisy(2)).verdict is Verdict.UNDECIDED

    def test_infinities_of_a_mask_are_judged_by_the_rest(self) -> None:
        runs = values(), noisy(1), noisy(2)
        for each in runs:
            each[0, :, 1:] = -math.inf
        assert verdict(*runs).verdict is Verdict.PASS
        runs[1][1] *= 1.5
        assert verdict(*runs).verdict is Verdict.MISMATCH

    @pytest.mark.parametrize("moved", [0.0, math.inf])
    def test_infinities_elsewhere_are_a_failure(self, moved: float) -> None:
        runs = values(), noisy(1), noisy(2)
        for each in runs:
            each[0, 0, 1:] = -math.inf
        runs[1][0, 0, 1] = moved
        found = verdict(*runs)
        assert (found.verdict, found.finding) == (Verdict.NONFINITE, Finding.OTHER_INFINITIES)

    def test_empty_is_equal(self) -> None:
        empty = torch.zeros(0, 3)
        result = verdict(empty, empty.clone(), empty.clone())
        assert (result.verdict, result.finding) == (Verdict.PASS, Finding.EQUAL)

    def test_scalar_has_the_norm_alone(self) -> None:
        one = torch.tensor(2.0)
        result = verdict(one, one * (1 + 3e-7), one * (1 + 1e-7))
        assert [j.reading.statistic for j in result.judgements] == [Statistic.NORM]
        assert result.verdict is Verdict.PASS

    @pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
    def test_whole_numbers_must_be_equal(self, dtype: torch.dtype) -> None:
        reference = torch.ones(8, 4).to(dtype)
        candidate = reference.clone()
        candidate[3, 1] = 0
        assert verdict(reference, reference.clone(), reference.clone()).finding is Finding.EQUAL
        assert verdict(reference, candidate, reference.clone()).verdict is Verdict.MISMATCH

    def test_choices_may_differ_as_often_as_under_noise(self) -> None:
        reference = torch.zeros(100, dtype=torch.int64)
        perturbed, few, many = reference.clone(), reference.clone(), reference.clone()
        perturbed[:2], few[10:19], many[10:20] = 1, 5, 5
        assert verdict(reference, few, perturbed).verdict is Verdict.PASS
        result = verdict(reference, many, perturbed)
        assert (result.verdict, result.finding) == (Verdict.MISMATCH, Finding.CHOICES)
        assert wording.finding(result) == "10 of 100 choices differ"

    def test_mixed_dtypes_compare_values_and_have_no_ulp(self) -> None:
        found = measure(values(), values().bfloat16())
        assert found.max_ulp is None
        assert found.relative_error < 0.01
        rounded = values().bfloat16()
        assert measure(rounded, rounded.float()).equal

    def test_negative_zero_is_equal(self) -> None:
        found = measure(torch.zeros(4, 4), -torch.zeros(4, 4))
        assert (found.equal, found.max_ulp) == (True, 0)

    def test_nothing_perturbed_it(self) -> None:
        """Only the floor is left: one eps of its norm, and no finer limit."""
        result = verdict(values(), values() * (1 + 1e-7), values())
        assert [j.reading.statistic for j in result.judgements] == [Statistic.NORM]
        assert result.tolerance is not None
        assert result.tolerance.source == "3 x eps of its dtype"

    def test_complex_numbers_have_no_places(self) -> None:
        found = measure(torch.ones(4, 4, dtype=torch.complex64), torch.zeros(4, 4))
        assert (found.slices, found.worst_element, found.count) == ((), (), 32)


def repeated(candidate: torch.Tensor, other: torch.Tensor) -> tuple[Verdict, Finding | None]:
    """Of two replicas; noise is 1 %."""
    reference = values()
    yardstick = Yardstick(
        dtype="float32",
        volume=reference.numel(),
        sequence=1,
        noise=(measure(reference, noisy(2)),),
    )
    whole = logical(candidate)
    (piece,) = whole.pieces
    spread = Disagreement.of(piece, measure(candidate, other))
    found = Measured(statistics=measure(reference, candidate), disagreements=(spread,))
    alignment = Alignment(id=ID, reference=logical(reference), candidate=whole)
    result = judged(alignment, found, tolerances({ID: yardstick}))
    return result.verdict, result.finding


def test_replicas_that_are_all_wrong_alike_are_no_conflict() -> None:
    """Half of the reference on both; that they differ by 1 % of it is beside the point."""
    half = values() / 2
    assert repeated(half, half * 1.01) == (Verdict.MISMATCH, Finding.CONSTANT_FACTOR)
    assert repeated(half, values()) == (Verdict.CONFLICT, Finding.REPLICAS_DISAGREE)
    assert repeated(values(), values() * 1.01) == (Verdict.CONFLICT, Finding.REPLICAS_DISAGREE)


def test_a_factor_near_one_is_a_factor_though_its_product_is_rounded() -> None:
    """What is left beside it is more than the tolerance of a tensor without noise, and little."""
    reference = values()
    nearly = reference * (1 + 1e-9)
    result = verdict(reference, reference * 1.01, nearly)
    assert result.finding is Finding.FACTOR
    assert wording.finding(result) == "a factor of 1.0100"
