"""Which culprits are said to be expected, and that nothing else is."""

from __future__ import annotations

import pytest

from ttrace.analysis.diagnose.describe import with_expected
from ttrace.core.blame import Blame, Culprit, Expected, Phase, Reason, Stage
from ttrace.core.ids import TensorId
from ttrace.core.record import Difference, ModuleInfo, Owner


def expected(blame: Blame, kind: str = "", slot: str = "0", **more: Reason) -> Expected | None:
    culprit = Culprit(
        blame=blame,
        reason=more.get("reason", Reason.GIVEN_REFERENCE_VALUES),
        evidence=(TensorId.parse(f"step0/m:output.{slot}"),),
    )
    module = ModuleInfo(path="m", class_name=kind, source="")
    return with_expected([culprit], [module])[0].expected


FORWARD = Blame.of("m", phase=Phase.FORWARD)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        *[(kind, Expected.DROPOUT) for kind in ("Dropout", "Dropout2d", "FeatureAlphaDropout")],
        *[(kind, Expected.BATCH_STATISTICS) for kind in ("BatchNorm1d", "LazyBatchNorm2d")],
        *[(kind, None) for kind in ("SyncBatchNorm", "LayerNorm", "DropoutAndAdd", "Linear", "")],
    ],
)
def test_by_the_class_of_the_module(kind: str, found: Expected | None) -> None:
    assert expected(FORWARD, kind) is found


def test_an_update_of_such_a_module_is_not_expected_to_differ() -> None:
    assert expected(Blame.of("m", phase=Phase.UPDATE), "BatchNorm1d") is None


def test_one_of_several_modules_may_be_a_mistake() -> None:
    assert expected(Blame.of("m", "n", phase=Phase.FORWARD), "Dropout") is None


def test_a_balancing_loss_of_each_rank() -> None:
    assert expected(FORWARD, "TopKRouter", "load_balancing_loss.1") is Expected.AUXILIARY_LOSS
    assert expected(FORWARD, "TopKRouter", "0") is None


def test_a_reduction_in_lower_precision() -> None:
    reduction = Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT)
    found = expected(reduction, reason=Reason.ROUNDED_LOWER)
    assert found is Expected.COMPRESSED_REDUCTION
    assert expected(reduction, reason=Reason.COMMON_FACTOR) is None


def test_a_number_that_somebody_set_is_not_expected_to_differ() -> None:
    eps = Difference(owner=Owner.MODULE, name="eps", reference=(1e-5,), candidate=(1e-3,))
    culprit = Culprit(
        blame=FORWARD,
        reason=Reason.GIVEN_REFERENCE_VALUES,
        evidence=(TensorId.parse("step0/m:output.0"),),
        differences=(eps,),
    )
    module = ModuleInfo(path="m", class_name="BatchNorm1d", source="")
    assert with_expected([culprit], [module])[0].expected is None
