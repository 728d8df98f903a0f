"""Culprits that share a cause are one line, with the list behind it."""

from __future__ import annotations

from dataclasses import replace

from tests.support.made_results import made, tensor
from tests.unit.report.test_terminal import printed
from ttrace.core.blame import Blame, Culprit, Phase, Reason
from ttrace.core.ids import TensorId
from ttrace.core.record import ModuleInfo
from ttrace.core.results import CheckResult
from ttrace.report import html, markdown, view


def blamed(classes: dict[str, str], ranks: tuple[int, ...] = (2, 3)) -> CheckResult:
    ids = [TensorId.parse(f"step0/{path}:output.0") for path in classes]
    tensors = tuple(replace(tensor(id_, n, 9e3), ranks=ranks) for n, id_ in enumerate(ids))
    return replace(
        made(2, wrong_layer=1),
        tensors=tensors,
        modules=tuple(ModuleInfo(path=p, class_name=c, source="") for p, c in classes.items()),
        culprits=tuple(
            Culprit(
                blame=Blame.of(id_.module, phase=Phase.FORWARD),
                reason=Reason.GIVEN_REFERENCE_VALUES,
                evidence=(id_,),
            )
            for id_ in ids
        ),
    )


EXPERTS = {f"layers.{n}.mlp.experts.{m}": "Expert" for n in range(4) for m in range(8)}


def test_experts_of_all_layers_are_one_line() -> None:
    result = blamed(EXPERTS | {"norm": "RMSNorm"})
    experts, norm = view.grouped(result)
    assert experts.where.startswith("layers.*.mlp.experts.* (32 places: layers.0.mlp.experts.0, ")
    assert experts.reason.endswith(", on ranks 2, 3")
    assert experts.places == tuple(EXPERTS)
    assert (norm.where, norm.places) == ("norm", ())
    assert len(result.culprits) == len(view.root_causes(result)) == 33


def test_every_form_for_people_groups_them() -> None:
    result = blamed(EXPERTS)
    for text in (printed(result), markdown.render(result), str(html.payload(result))):
        assert "layers.*.mlp.experts.* (32 places: " in text
        assert "given the reference's values" in text


def test_modules_of_another_class_are_another_cause() -> None:
    result = blamed({"0": "Linear", "1": "ReLU", "2": "Linear"})
    assert [cause.where for cause in view.grouped(result)] == ["* (2 places: 0, 2)", "1"]


def test_names_with_digits_in_them_are_names() -> None:
    result = blamed({"conv1": "Conv2d", "conv2": "Conv2d"})
    assert [cause.where for cause in view.grouped(result)] == ["conv1", "conv2"]


def test_where_some_are_wrong_on_all_ranks_none_is_named() -> None:
    result = blamed({"layers.0": "Block", "layers.1": "Block"}, ranks=())
    (cause,) = view.grouped(result)
    assert "on rank" not in cause.reason
