"""Rows found by content: whole, in parts, several times, or not at all."""

import torch

from ttrace.analysis.align.lookup import find_blocks, find_chunks, find_padded, find_rows
from ttrace.analysis.batch import digest
from ttrace.core.layout import Run

SAMPLES = torch.arange(4 * 8).reshape(4, 8)
DIGESTS = [digest(row) for row in SAMPLES]


def test_whole_rows_are_found_in_any_order() -> None:
    found = find_rows({0: list(SAMPLES[[2, 3, 0]])}, {0: "a"}, DIGESTS)
    assert found == {0: (Run(2, 2), Run(0, 1))}


def test_a_row_that_is_nowhere_is_not_found() -> None:
    assert find_rows({0: list(SAMPLES[:1] + 1)}, {0: "a"}, DIGESTS) is None


def test_equal_rows_are_taken_one_after_the_other() -> None:
    same = SAMPLES[:1].expand(2, -1)
    found = find_rows(
        {0: list(same[:1]), 1: list(same[:1])}, {0: "a", 1: "b"}, [digest(row) for row in same]
    )
    assert found == {0: (Run(0, 1),), 1: (Run(1, 1),)}


def test_neighbouring_positions_are_found() -> None:
    rows = {0: list(SAMPLES[1:3, :4]), 1: list(SAMPLES[1:3, 4:])}
    samples = (Run(1, 2),)
    assert find_chunks(rows, {0: "a", 1: "a"}, list(SAMPLES)) == {
        0: (samples, (Run(0, 4),)),
        1: (samples, (Run(4, 4),)),
    }


def test_zigzag_positions_are_found() -> None:
    rows = {0: list(SAMPLES[:, [0, 1, 6, 7]]), 1: list(SAMPLES[:, [2, 3, 4, 5]])}
    # The second holds neighbours, but only as two chunks do both fit one way of splitting.
    assert find_chunks(rows, {0: "a", 1: "a"}, list(SAMPLES)) == {
        0: ((Run(0, 4),), (Run(0, 2), Run(6, 2))),
        1: ((Run(0, 4),), (Run(2, 4),)),
    }


def test_padding_that_stands_in_all_samples_takes_the_positions_that_fit_every_row() -> None:
    samples = SAMPLES.clone()
    samples[0, 4:] = 0
    samples[3] = 0
    rows = {0: list(samples[[0, 1, 3], 4:])}
    assert find_chunks(rows, {0: "a"}, list(samples)) == {0: ((Run(0, 2), Run(3, 1)), (Run(4, 4),))}


def test_parts_of_other_data_are_not_found() -> None:
    assert find_chunks({0: list(SAMPLES[:, :4] + 100)}, {0: "a"}, list(SAMPLES)) is None


def test_lengths_that_do_not_divide_are_not_found() -> None:
    assert find_chunks({0: list(SAMPLES[:, :3])}, {0: "a"}, list(SAMPLES)) is None


TOKENS = torch.tensor([3, 1, 1, 2, 3, 1, 2, 2])
KNOWN = [digest(token) for token in TOKENS]


def test_equal_tokens_are_told_apart_by_their_neighbours() -> None:
    rows = {0: list(TOKENS[4:]), 1: list(TOKENS[:4])}
    assert find_blocks(rows, {0: "a", 1: "b"}, KNOWN) == {0: (Run(4, 4),), 1: (Run(0, 4),)}


def test_a_single_token_among_equal_ones_is_not_found() -> None:
    assert find_blocks({0: [TOKENS[4], TOKENS[3]]}, {0: "a"}, KNOWN) is None


PADDED = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0], [1, 2, 3, 4]])


def test_rows_that_are_padded_less_are_found() -> None:
    rows = {0: list(PADDED[:2, :3]), 1: list(PADDED[2:])}
    assert find_padded(rows, {0: "a", 1: "b"}, list(PADDED)) == {
        0: ((Run(0, 2),), Run(0, 3)),
        1: ((Run(2, 1),), Run(0, 4)),
    }


def test_rows_that_are_padded_less_at_their_start_are_found() -> None:
    samples = PADDED.flip(1)
    rows = {0: list(samples[:2, 1:]), 1: list(samples[2:])}
    assert find_padded(rows, {0: "a", 1: "b"}, list(samples)) == {
        0: ((Run(0, 2),), Run(1, 3)),
        1: ((Run(2, 1),), Run(0, 4)),
    }


def test_a_row_that_lacks_more_than_padding_is_not_found() -> None:
    assert find_padded({0: list(PADDED[2:, :2])}, {0: "a"}, list(PADDED)) is None


def test_a_last_token_that_is_cut_off_everywhere_is_no_padding() -> None:
    samples = torch.tensor([[5, 6, 7, 2], [8, 9, 1, 2]])
    assert find_padded({0: list(samples[:, :3])}, {0: "a"}, list(samples)) is None
    assert find_padded({0: list(samples[:, :3])}, {0: "a"}, list(PADDED[:, :3])) is None
