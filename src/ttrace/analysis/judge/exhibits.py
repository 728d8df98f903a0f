"""What is known of every tensor of a comparison, before rules say what it means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ttrace.analysis.compare import Measured, moved_before
from ttrace.analysis.judge.rulings import Exhibit
from ttrace.analysis.measuring import Compared
from ttrace.analysis.tolerance import allowed_moves
from ttrace.core.ids import TensorId
from ttrace.core.logical import Alignment
from ttrace.core.statistics import Judgement, Statistic, Statistics, Tolerance, in_eps, readings
from ttrace.trace.dtypes import eps_of

_OF_ALL = frozenset({Statistic.GAIN, Statistic.SHIFT, Statistic.CHOICES})  # whatever cells are


def exhibits_of(
    compared: Compared,
    tolerances: Mapping[TensorId, Tolerance],
    noise: Sequence[Mapping[TensorId, Measured]] = (),
    *,
    is_isolated: bool = False,
    is_given: Callable[[TensorId], bool] = lambda _: True,
) -> dict[TensorId, Exhibit]:
    """One for every tensor of which a verdict is due."""
    moves = moves_of(compared, noise, is_isolated=is_isolated)
    return {
        one.id: exhibit_of(
            one,
            compared.measured.get(one.id),
            tolerances.get(one.id),
            order=order,
            allowed_moves=moves.get(one.id, 0.0),
        )
        for order, one in enumerate(compared.aligned.tensors)
        if one.is_judged and is_given(one.id)
    }


def exhibit_of(
    alignment: Alignment,
    measured: Measured | None,
    tolerance: Tolerance | None,
    *,
    order: int = 0,
    allowed_moves: float = 0.0,
) -> Exhibit:
    """What is known of one tensor; nothing of its values where both sides could not be measured."""
    pair = alignment.pair
    if pair is None or measured is None or not measured.cells_fit:
        return Exhibit(alignment=alignment, order=order)
    reference, candidate = pair
    statistics, eps = measured.statistics, eps_of(candidate.dtype)
    return Exhibit(
        alignment=alignment,
        order=order,
        measured=measured,
        tolerance=tolerance,
        judgements=judgements_of(statistics, tolerance, reference.shape, eps),
        error_eps=statistics.relative_error / eps if eps else None,
        moved=measured.moved,
        allowed_moves=allowed_moves,
    )


def judgements_of(
    found: Statistics, tolerance: Tolerance | None, shape: tuple[int, ...], eps: float
) -> tuple[Judgement, ...]:
    """One for every limit, the norm's first."""
    if tolerance is None:
        return ()
    limits = {
        (limit.statistic, limit.dims): limit.allowed
        for limit in tolerance.limits
        if found.cells == tolerance.cells or limit.statistic in _OF_ALL
    }
    limits[Statistic.NORM, ()] = tolerance.error_norm
    return tuple(
        Judgement(
            reading=reading,
            allowed=limits[reading.key],
            ratio=_ratio(reading.value, limits[reading.key]),
            eps=in_eps(reading, found, shape, eps),
        )
        for reading in readings(found)
        if reading.key in limits
    )


def _ratio(value: float, allowed: float) -> float:
    if value == 0:
        return 0.0
    return value / allowed if allowed else math.inf


def moves_of(
    compared: Compared, noise: Sequence[Mapping[TensorId, Measured]], *, is_isolated: bool
) -> dict[TensorId, float]:
    """For every tensor how many tokens may move: as many as noise moves, and had moved before."""
    of_noise = allowed_moves([found.moved for run in noise for found in run.values()])
    moved = compared.moved() if is_isolated else {}
    return {id_: of_noise + moved_before(id_, moved) for id_ in compared.measured}
