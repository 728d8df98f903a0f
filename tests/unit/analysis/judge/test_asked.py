"""What a run says of its dtypes is what it was asked for."""

from __future__ import annotations

from typing import cast

from ttrace.analysis.compare import Asked
from ttrace.analysis.judge.case_file import asked
from ttrace.analysis.sources import Source
from ttrace.core.evidence import RunFacts
from ttrace.core.record import COMPUTE_DTYPE, REDUCTION_DTYPE


class Told:
    """A source that is nothing but what it tells."""

    def __init__(self, dtypes: tuple[str, ...] = ("float32",), **facts: str) -> None:
        names = {"compute": COMPUTE_DTYPE, "reduction": REDUCTION_DTYPE}
        self.facts = RunFacts(
            role="candidate",
            path="trace",
            world_size=1,
            mesh={},
            dtypes=dtypes,
            adapter="native",
            device="cpu",
            steps=1,
            noise_seed=None,
            versions={},
            facts={names[name]: value for name, value in facts.items()},
        )


def between(reference: Told, candidate: Told) -> Asked:
    return asked(cast("Source", reference), cast("Source", candidate))


def test_who_says_nothing_asked_for_nothing() -> None:
    assert between(Told(), Told()) == Asked()


def test_parameters_are_kept_in_what_is_computed_in() -> None:
    found = between(Told(), Told(("bfloat16", "float32")))
    assert found.everywhere == {"bfloat16"}


def test_what_the_reference_computes_in_too_is_no_excuse() -> None:
    both = Told(("bfloat16",)), Told(("bfloat16",), compute="bfloat16")
    assert between(*both).everywhere == set()
    assert between(Told(), Told(compute="bfloat16, float16")).everywhere == {"bfloat16", "float16"}


def test_a_reference_of_one_rank_reduces_nothing_whatever_it_was_told() -> None:
    found = between(Told(reduction="bfloat16"), Told(reduction="bfloat16"))
    assert (found.everywhere, found.in_reduction) == (set(), {"bfloat16"})
