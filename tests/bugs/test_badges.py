"""For every kind of mistake a bug that names it: one of the zoo, or a plant in codes and scales."""

import pytest

from tests.distributed.test_quantised import WRONG as QUANTISED
from tests.support.tracing import explain
from ttrace.core.blame import Mistake
from ttrace.report.badges import UNKNOWN
from ttrace.report.card import cards
from zoo.bug import Family
from zoo.registry import bugs
from zoo.trials import Trials

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
BUGS = {bug.name: bug for bug in (*bugs(Family.NATIVE), *bugs(Family.DEMO))}
QUICK = {"gate-after-value", "count-of-each-rank", "detached", "rate-times-ranks"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in BADGES]
)
def test_the_card_names_the_kind_of_mistake(name: str, trials: Trials) -> None:
    result = trials.bug(BUGS[name]).result
    badge = cards(result)[0].badge
    said = badge.nearest if badge.words == UNKNOWN else badge.words
    assert said == BADGES[name][1], explain(result)


def test_every_kind_has_a_bug() -> None:
    shown = {mistake for mistake, _ in BADGES.values() if mistake is not None}
    shown |= {mistake for _, mistake in QUANTISED.values()}
    assert shown == set(Mistake) - {Mistake.NOT_QUANTISED}  # tests/distributed/test_precision.py
