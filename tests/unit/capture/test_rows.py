"""Tokens that other ranks sent stand where they stood there, and all other places are zero."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ttrace.adapters.base import SentTokens
from ttrace.capture.recorder import dense_rows
from ttrace.core.layout import Layout

LOCAL = torch.arange(12.0).view(4, 3) + 1


def sent(origin: int, rows: list[int], places: list[int], shape: tuple[int, ...]) -> SentTokens:
    return SentTokens(
        origin=origin,
        rows=torch.tensor(rows, dtype=torch.int64),
        places=torch.tensor(places, dtype=torch.int64),
        layout=Layout.full(shape),
    )


def test_rows_stand_at_their_places_and_the_others_are_zero() -> None:
    parts = [sent(0, [2, 0], [1, 5], (2, 3, 3)), sent(1, [1, 3], [0, 2], (3, 3))]
    (first, dense), (second, other) = dense_rows(LOCAL, parts)
    assert [first.origin, second.origin] == [0, 1]
    expected = torch.zeros(2, 3, 3)
    expected[0, 1], expected[1, 2] = LOCAL[2], LOCAL[0]
    assert torch.equal(dense, expected)
    assert torch.equal(other, torch.stack([LOCAL[1], torch.zeros(3), LOCAL[3]]))


def test_a_rank_that_sent_nothing_has_only_zeros() -> None:
    ((_, dense),) = dense_rows(LOCAL, [sent(0, [], [], (2, 3))])
    assert torch.equal(dense, torch.zeros(2, 3))


def test_numbers_for_each_token_have_no_further_dims() -> None:
    ((_, dense),) = dense_rows(LOCAL[:, 0], [sent(0, [3, 1], [0, 3], (2, 2))])
    assert dense.tolist() == [[10.0, 0.0], [0.0, 4.0]]


def test_dtype_and_values_are_those_of_the_tensor() -> None:
    local = LOCAL.to(torch.bfloat16)
    ((_, dense),) = dense_rows(local, [sent(0, [0], [1], (2, 3))])
    assert dense.dtype == torch.bfloat16
    assert torch.equal(dense[1], local[0])
    dense.zero_()
    assert torch.equal(local, LOCAL.to(torch.bfloat16))  # it is a tensor of its own


def test_each_is_made_when_it_is_asked_for() -> None:
    """A rank that got tokens of many others holds one dense tensor at a time."""
    asked: list[int] = []

    def parts() -> Iterator[SentTokens]:
        for origin in range(3):
            asked.append(origin)
            yield sent(origin, [0], [0], (1, 3))

    for part, _ in dense_rows(LOCAL, parts()):
        assert asked[-1] == part.origin
    assert asked == [0, 1, 2]
