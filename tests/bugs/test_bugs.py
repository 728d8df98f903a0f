"""Every bug is found, placed and told by its kind, and its correct twin is silent.

One test asserts all of a bug, so that it is run once. Those of Megatron are in
tests/megatron/test_megatron_bugs.py, which needs the package.
"""

import pytest

from tests.support.quantised_train import PLANTS
from tests.support.tracing import explain
from ttrace.core.blame import Mistake
from ttrace.report.card import UNKNOWN, cards
from zoo.bug import Bug, Family
from zoo.registry import bugs
from zoo.trials import Trial, Trials, blames

BUGS = [bug for family in Family if family is not Family.MEGATRON for bug in bugs(family)]
# What the first card says of a bug; where no kind is known, the nearest.
BADGES = {
    "mask-never-filled": (Mistake.ALL_ZERO, "all zero"),
    "stale-weights": (Mistake.NOT_UPDATED, "not updated"),
    "shared-key-gradient": (Mistake.MISSING_ALL_REDUCE, "missing all-reduce"),
    "lost-hooks": (Mistake.MISSING_AVERAGE, "missing average"),
    "gate-after-value": (Mistake.PARTS_EXCHANGED, "parts exchanged"),
    "part-of-the-next": (Mistake.PARTS_IN_OTHER_ORDER, "parts in another order"),
    "not-transposed-back": (Mistake.TRANSPOSED, "transposed"),
    "shifted-twice": (Mistake.ONE_PLACE_LATER, "shifted by one place"),
    "positions-from-one": (Mistake.ONE_PLACE_EARLIER, "shifted by one place"),
    "sign-of-a-difference": (Mistake.OPPOSITE_SIGN, "opposite sign"),
    "divisor-without-parts": (Mistake.SUM_FOR_MEAN, "sum instead of mean over dp_cp"),
    "averaged-parts": (
        Mistake.DIVIDED_TOO_OFTEN,
        "divided once too often over ranks or microbatches",
    ),
    "count-of-each-rank": (Mistake.FACTOR_OF_EACH_PART, "another factor on each rank"),
    "row-bias": (Mistake.SAME_VECTOR_IN_EVERY_ROW, "bias added too often or not at all"),
    "gathered-in-bf16": (Mistake.ROUNDED_LOWER, "rounded to bfloat16"),
    "key-gradient-unsummed": (Mistake.ONE_TERM_OF_A_SUM, "one term of a sum over dp_cp"),
    "copied-accumulation": (None, "microbatches not added up"),
    "mean-of-means": (None, "microbatches weighed unequally"),
    "bf16-reduction": (None, "compressed reduction"),
    "same-samples": (None, "other data"),
    "router-by-rank": (None, "other initial parameters"),
    "detached": (None, "cut off from autograd"),
    "whole-counted-by-each": (None, "wrong gradient norm"),
    "rate-times-ranks": (None, "lr differs"),
    "remade-parameters": (None, "optimizer has other parameters"),
    "shifted-after-split": (None, "wrong factor (0.905x)"),
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_named_and_its_twin_is_silent(bug: Bug, trials: Trials) -> None:
    wrong, twin = trials.bug(bug), trials.twin(bug)
    assert bug.is_named_by(wrong.named), explain(wrong.told)
    assert wrong.result.exit_code == 1
    assert wrong.is_seen_by_norm is not bug.is_hidden, explain(wrong.plain)
    if bug.family is Family.DEMO:  # one comparison is enough for these
        assert blames(wrong.plain) == bug.expected, explain(wrong.plain)
    if bug.name in BADGES:
        assert badge(wrong) == BADGES[bug.name][1], explain(wrong.result)
    assert twin.is_silent, explain(twin.told)
    if bug.family is not Family.LOW_PRECISION:  # of which some pass by what isolation finds
        for result in twin.results:
            assert result.exit_code == 0, explain(result)
            assert not result.coverage.faults


def badge(trial: Trial) -> str:
    """What the first card of a report says of the kind of mistake."""
    shown = cards(trial.result)[0].badge
    return (shown.nearest or "") if shown.words == UNKNOWN else shown.words


def test_every_kind_of_mistake_has_a_bug() -> None:
    shown = {mistake for mistake, _ in BADGES.values() if mistake is not None}
    shown |= {mistake for _, mistake in PLANTS.values()}
    assert shown == set(Mistake) - {Mistake.NOT_QUANTISED}  # tests/distributed/test_precision.py
    assert BADGES.keys() <= {bug.name for bug in BUGS}


def test_every_pair_is_of_two_bugs() -> None:
    pairs = [bug for bug in BUGS if bug.together]
    assert pairs
    assert all(len(set(pair.together)) == len(pair.expected) == 2 for pair in pairs)
