"""Of which blocks isolated runs record values, after a plain comparison of fingerprints."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.made_results import tensor
from ttrace.core.blame import Blame, Culprit, Phase, Reason
from ttrace.core.finding import Note, Topic
from ttrace.core.ids import TensorId
from ttrace.core.record import ModuleInfo
from ttrace.core.results import CheckResult
from ttrace.lab.isolation import further_blocks, suspected_blocks

ID = TensorId.parse("step0/layers.1:output.0")
PATHS = ("", "embed", *(f"layers.{layer}{name}" for layer in (0, 1) for name in ("", ".w1", ".w2")))


def result(blamed: Sequence[str] = (), quantise_otherwise: Sequence[str] = ()) -> CheckResult:
    modules = tuple(quantise_otherwise)
    note = Note(topic=Topic.OTHER_RECIPE, count=len(modules), modules=modules)
    return CheckResult(
        reference="",
        candidate="",
        perturbed=(),
        tensors=(tensor(ID, 0, 40.0),),
        culprits=tuple(
            Culprit(
                blame=Blame.of(module, phase=Phase.FORWARD),
                reason=Reason.FIRST_WRONG_OUTPUT,
                evidence=(TensorId.parse(f"step0/{module}:output.0"),),
            )
            for module in blamed
        ),
        modules=tuple(ModuleInfo(path=path, class_name="Module", source="") for path in PATHS),
        notes=(note,) if modules else (),
    )


def test_a_culprit_points_at_its_block() -> None:
    assert suspected_blocks(result(["layers.1.w2"])) == ("layers.1",)
    assert suspected_blocks(result()) == ()


def test_a_block_that_is_blamed_as_a_whole_is_looked_into() -> None:
    assert further_blocks(result(["layers.1"]), ()) == ("layers.1",)
    assert further_blocks(result(["layers.1"]), ("layers.1",)) == ()


@pytest.mark.parametrize(
    ("module", "blocks"), [("layers.0.w2", ("layers.0",)), ("embed", ("embed",))]
)
def test_and_one_in_which_a_module_quantises_otherwise(
    module: str, blocks: tuple[str, ...]
) -> None:
    """What that does to one of its modules is less than what codes do that flip in all of them."""
    assert further_blocks(result([], [module]), ()) == blocks
    assert further_blocks(result([], [module]), blocks) == ()
    assert further_blocks(result([], []), ()) == ()
