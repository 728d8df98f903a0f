"""Gradients that are coarser than the sum of their own terms, where the reference has one term."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.support.grains import Run, fine, low
from tests.support.judging import made_case
from ttrace.analysis.compare import Asked, Measured
from ttrace.analysis.compare.grain import between
from ttrace.analysis.judge.rules.precision import LostBits, rounded_sums
from ttrace.core.ids import TensorId
from ttrace.measure.accumulator import Accumulator
from ttrace.measure.rounding import Witnesses

TERMS, SUM = "a:grad.weight", "a:main_grad.weight"
ONE_TERM = low(count=2000)
OF_TWO = low(count=2000) + fine(2000, seed=1).bfloat16().float()  # has bits of float32
NAMED = {SUM: ("bfloat16", "float32")}


def found(
    terms: tuple[Tensor, Tensor], sums: tuple[Tensor, Tensor], asked: Asked | None = None
) -> dict[str, tuple[str, str]]:
    """Reference and candidate of both."""
    run = Run().add(TERMS, *terms, terms=(1, 2)).add(SUM, *sums)
    values = {TensorId.parse(f"step0/{SUM}"): (terms[1], sums[1])}

    case = made_case(pairs=run.pairs, measured=run.measured)
    case.__dict__["asked"] = asked or Asked()
    jobs = LostBits().jobs(case)
    wrong = rounded_sums(case, [_measured(*values[job.unit.id]) for job in jobs])
    assert all(precision.is_of_own_terms for precision in wrong.values())
    return {
        str(id_).removeprefix("step0/"): (each.candidate.name, each.reference.name)
        for id_, each in wrong.items()
    }


def _measured(terms: Tensor, total: Tensor) -> Measured:
    whole = Accumulator(shape=terms.shape)
    whole.update(terms, total)
    statistics = whole.result()
    precision = between(statistics)
    assert precision is not None
    witnesses = Witnesses(precision.coarser.mantissa_bits)
    witnesses.add(total, terms)
    return Measured(statistics=statistics, witnesses=witnesses.count)


def rounded(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().float()


def test_a_sum_that_was_rounded_is_named() -> None:
    assert found((ONE_TERM, OF_TWO), (ONE_TERM, rounded(OF_TWO))) == NAMED


def test_also_where_it_is_a_mean() -> None:
    assert found((ONE_TERM, OF_TWO), (ONE_TERM, rounded(OF_TWO / 2))) == NAMED
    assert found((ONE_TERM, OF_TWO), (ONE_TERM, rounded(OF_TWO / 3))) == NAMED


def test_the_sum_itself_is_right() -> None:
    assert not found((ONE_TERM, OF_TWO), (ONE_TERM, OF_TWO / 2))


def test_one_term_has_nothing_to_lose() -> None:
    assert not found((ONE_TERM, ONE_TERM), (ONE_TERM, ONE_TERM))


def test_a_reference_that_loses_bits_itself_is_followed() -> None:
    assert not found((OF_TWO, OF_TWO), (rounded(OF_TWO), rounded(OF_TWO)))


def test_what_was_asked_for_is_right() -> None:
    asked = Asked(in_reduction={"bfloat16"})
    assert not found((ONE_TERM, OF_TWO), (ONE_TERM, rounded(OF_TWO)), asked)


def test_gradients_that_are_kept_in_bfloat16_are_open_about_it() -> None:
    kept = (ONE_TERM.bfloat16(), OF_TWO.bfloat16())
    assert not found((ONE_TERM, OF_TWO), kept)


def test_another_tensor_is_no_rounding_of_its_terms() -> None:
    other = rounded(torch.randn(2000, generator=torch.Generator().manual_seed(5)))
    assert not found((ONE_TERM, OF_TWO), (ONE_TERM, other))


def test_three_values_are_no_evidence_that_bits_were_lost() -> None:
    few = torch.where(torch.arange(2000) < 2, OF_TWO, ONE_TERM)
    assert not found((ONE_TERM, few), (ONE_TERM, rounded(few)))
