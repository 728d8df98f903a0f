"""The grid of correct runs has what its page promises."""

import re
from collections import defaultdict

import pytest

from benchmarks.clean.design import DEPTHS, DTYPES, ROWS, WIDTHS, design
from benchmarks.clean.job import tasks_of
from zoo.clean.case import Case
from zoo.clean.layouts import LAYOUTS
from zoo.clean.registry import OWN, architectures


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return design()


def test_there_are_more_than_a_thousand_cases_with_keys_of_their_own(cases: list[Case]) -> None:
    assert len(OWN) >= 20
    assert len(cases) >= 1050 * len(architectures()) / 29
    assert len({case.key for case in cases}) == len(cases)
    assert [Case.from_key(case.key) for case in cases] == cases
    assert len({case.seed for case in cases}) >= 3


def test_every_architecture_meets_every_precision_and_three_layouts(cases: list[Case]) -> None:
    dtypes, layouts = defaultdict(set), defaultdict(set)
    for case in cases:
        dtypes[case.architecture].add(case.dtype)
        layouts[case.architecture].add(case.layout)
    assert dtypes == {name: set(DTYPES) for name in architectures()}
    assert all(len(layouts[name]) >= 3 for name in architectures())


def test_every_layout_and_optimizer_is_met_and_mkldnn_by_a_share(cases: list[Case]) -> None:
    assert {case.layout for case in cases} == LAYOUTS.keys() - {"one"}
    assert len({case.optimizer for case in cases}) == 7
    fp32 = [case for case in cases if case.dtype == "fp32"]
    assert 0.2 < sum(case.mkldnn for case in fp32) / len(fp32) < 0.6
    assert not any(case.mkldnn for case in cases if case.dtype != "fp32")


@pytest.mark.parametrize(
    ("group", "of", "sizes"),
    [("rows", "rows", ROWS), ("width", "width", WIDTHS), ("depth", "depth", DEPTHS)],
)
def test_a_sweep_varies_one_size_alone(
    group: str, of: str, sizes: tuple[int, ...], cases: list[Case]
) -> None:
    swept = [case for case in cases if case.group == group]
    assert {getattr(case, of) for case in swept} == set(sizes)
    for other in {"rows", "width", "depth"} - {of}:
        assert len({getattr(case, other) for case in swept}) == 1


def test_cases_run_where_their_architecture_can(cases: list[Case]) -> None:
    for case in cases:
        architecture, layout = architectures()[case.architecture], LAYOUTS[case.layout]
        assert case.layout in architecture.layouts
        assert case.batch % (layout.ranks * layout.microbatches) == 0
        if architecture.is_image:
            assert round(case.positions**0.5) ** 2 == case.positions


def test_cases_that_can_share_a_reference_do(cases: list[Case]) -> None:
    tasks = tasks_of(cases, until=0.0)
    assert sum(len(task.cases) for task in tasks) == len(cases)
    assert len(tasks) < 0.75 * len(cases)
    assert all(len({case.reference for case in task.cases}) == 1 for task in tasks)


def test_first_contacts_are_chosen_by_their_name(cases: list[Case]) -> None:
    named = [case for case in cases if re.search("first-contact", case.key)]
    assert {case.architecture for case in named} >= {"layernorm", "lstm", "unet", "megatron"}


def test_a_gpu_has_larger_cases_and_references_on_the_cpu() -> None:
    on_gpu = design("cuda")
    assert max(case.rows for case in on_gpu) == 262_144
    assert max(case.width for case in on_gpu) == 8192
    assert {case.reference.device for case in on_gpu} == {"cpu", "cuda"}
    assert {case.device for case in on_gpu} == {"cuda"}
    assert [Case.from_key(case.key) for case in on_gpu] == on_gpu


def test_a_case_with_a_word_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="'ddp3' is none of one, ddp2"):
        Case(architecture="mlp", batch=8, positions=8, layout="ddp3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mkldnn is for fp32 alone"):
        Case(architecture="mlp", batch=8, positions=8, dtype="bf16", mkldnn=True)
