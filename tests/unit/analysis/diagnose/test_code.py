"""Which lines are shown of a culprit: the user's own, of a rank that is wrong."""

from __future__ import annotations

from ttrace.analysis.diagnose.describe import with_code
from ttrace.core.blame import Blame, Culprit, Phase, Reason, Stage
from ttrace.core.ids import TensorId
from ttrace.core.record import CLIPPING, Code, Excerpt


def excerpt(name: str, *, own: bool = True) -> Excerpt:
    return Excerpt(file=name, line=1, function="f", first=1, lines=("x",), is_own=own)


def code(suffix: str = "") -> Code:
    """mlp is a class of the user's, mlp.w one of torch's, block one of an installed package's."""
    names = {
        "forward of mlp": True,
        "call of mlp": True,
        "forward of w": False,
        "call of w": True,
        "forward of block": False,
        "call of block": False,
        "clip": True,
    }
    order = list(names)
    return Code(
        excerpts=tuple(excerpt(name + suffix, own=own) for name, own in names.items()),
        forwards={"mlp": 0, "mlp.w": 2, "block": 4},
        calls={
            "mlp": (1,),
            "mlp.w": (3,),
            "block": (5,),
            CLIPPING: (order.index("clip"),),
        },
    )


def shown(
    blame: Blame, first: str, *, ranks: dict[int, Code] | None = None, wrong: tuple[int, ...] = ()
) -> list[str]:
    id_ = TensorId.parse(f"step0/{first}")
    culprit = Culprit(blame=blame, reason=Reason.GIVEN_REFERENCE_VALUES, evidence=(id_,))
    (found,) = with_code([culprit], ranks or {0: code()}, {id_: wrong})
    return [each.file for each in found.code]


def of(module: str) -> Blame:
    return Blame.of(module, phase=Phase.FORWARD)


def test_class_of_the_users_shows_what_it_runs() -> None:
    assert shown(of("mlp"), "mlp:output.0") == ["forward of mlp"]


def test_what_it_makes_for_a_child_is_the_line_that_calls_it() -> None:
    assert shown(of("mlp"), "mlp.w:input.0") == ["call of w"]


def test_class_of_a_framework_shows_who_calls_it_then_what_it_runs() -> None:
    assert shown(of("mlp.w"), "mlp.w:output.0") == ["call of w", "forward of w"]


def test_installed_package_that_calls_another_is_shown_before_what_that_runs() -> None:
    assert shown(of("block"), "block:output.0") == ["call of block"]


def test_stage_shows_the_loop() -> None:
    clipping = Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM)
    assert shown(clipping, ":grad_norm") == ["clip"]


def test_rank_that_is_wrong_tells_what_it_runs() -> None:
    """Ranks may run different code; a rank without code is passed over."""
    ranks = {0: code(" on 0"), 1: code(" on 1"), 2: Code()}
    assert shown(of("mlp"), "mlp:output.0", ranks=ranks, wrong=(1,)) == ["forward of mlp on 1"]
    assert shown(of("mlp"), "mlp:output.0", ranks=ranks, wrong=(2,)) == ["forward of mlp on 0"]
    assert shown(of("mlp"), "mlp:output.0", ranks=ranks) == ["forward of mlp on 0"]


def test_run_that_tells_nothing_shows_nothing() -> None:
    assert shown(of("mlp"), "mlp:output.0", ranks={0: Code()}) == []
