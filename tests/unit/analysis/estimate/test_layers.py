"""Layers are found by their paths, and added ones are like those in the middle."""

import pytest

from ttrace.analysis.estimate.layers import Spot, asked_counts, spot_of, stacked
from ttrace.core.estimate import Assumption
from ttrace.errors import UsageError


@pytest.mark.parametrize(
    ("path", "spot"),
    [
        ("layers.3.attention.wq", Spot("layers", 3, ".attention.wq")),
        ("decoder.layers.12", Spot("decoder.layers", 12, "")),
        ("layers.0.experts.7.w1", Spot("layers", 0, ".experts.7.w1")),
        ("0.weight", Spot("", 0, ".weight")),
        ("norm", None),
        ("layer12.w", None),
        ("", None),
    ],
)
def test_the_outermost_list(path: str, spot: Spot | None) -> None:
    assert spot_of(path) == spot
    assert spot is None or spot.at(spot.index) == path


@pytest.mark.parametrize(
    ("looks", "count", "sources", "about"),
    [
        ("abc", 3, (0, 1, 2), None),
        ("abc", 5, (0, 1, 1, 1, 2), Assumption.LAYERS_ALIKE),
        ("abbbc", 3, (0, 1, 4), Assumption.LAYERS_ALIKE),
        ("axyxyc", 8, (0, 1, 2, 1, 2, 1, 2, 5), Assumption.LAYERS_ALIKE),
        ("axyc", 7, (0, 1, 2, 1, 2, 1, 3), Assumption.LAYERS_UNEVEN),
        ("aa", 4, (0, 1, 1, 1), Assumption.LAYERS_ALIKE),
        ("ab", 4, (0, 1, 1, 1), Assumption.LAYERS_DIFFER),
        ("a", 3, (0, 0, 0), Assumption.LAYERS_ALIKE),
        ("abc", 1, (0,), Assumption.LAYERS_ALIKE),
    ],
)
def test_added_layers_are_like_the_middle(
    looks: str, count: int, sources: tuple[int, ...], about: Assumption | None
) -> None:
    stack, assumed = stacked("layers", dict(enumerate(looks)), count, high=True)
    assert stack.sources == sources
    assert (assumed and assumed.about) == about


def test_two_that_differ_are_asked_for_twice() -> None:
    low, _ = stacked("layers", {0: "a", 1: "b"}, 4, high=False)
    assert low.sources == (0, 0, 0, 1)


def test_counts_are_of_the_only_list_or_of_named_ones() -> None:
    lists = {"encoder.layers": 2, "decoder.layers": 3}
    assert asked_counts(None, lists) == lists
    assert asked_counts("8", {"layers": 3}) == {"layers": 8}
    assert asked_counts("decoder.layers=8", lists) == {"encoder.layers": 2, "decoder.layers": 8}
    with pytest.raises(UsageError, match=r"encoder\.layers with 2, decoder\.layers with 3"):
        asked_counts("8", lists)
