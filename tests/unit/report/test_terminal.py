"""The report as text: piped, so that it has no colours and fits a golden file."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from tests.support.invoking import check_golden
from tests.support.made_results import made
from tests.support.printing import printed
from ttrace.cli.traces import print_tensor
from ttrace.core.blame import Blame, Culprit, Phase, Reason
from ttrace.core.finding import Finding, Note, Specifics, Topic
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout, Run
from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.record import Record
from ttrace.core.results import CheckResult, Coverage, TensorResult, Verdict
from ttrace.core.statistics import Statistics, Tolerance
from ttrace.report import wording
from ttrace.report.overall import headline
from ttrace.report.terminal import print_check

MEASURED = Statistics(
    count=64,
    error_norm=1e-6,
    reference_norm=10.0,
    candidate_norm=10.0,
    dot=100.0,
    max_error=1e-6,
    error_sum=0.0,
    nonfinite_reference=0,
    nonfinite_candidate=0,
    unequal=12,
)
HOSTILE = ("[red]x[/]", "<img src=x onerror=alert(1)>", r"back\slash\[", ":100: :smile:", "日本語")


def result(name: str, verdict: Verdict, order: int, **more: Any) -> TensorResult:
    plain = TensorResult(
        id=TensorId.parse(f"step0/{name}"),
        verdict=verdict,
        order=order,
        shape=(8, 8),
        dtype="float32",
        statistics=MEASURED,
        tolerance=Tolerance(error_norm=3e-6, source="3 x noise of perturbed reference"),
        ratio=1 / 3,
        error_eps=0.84,
    )
    return replace(plain, **more)


GOOD = (
    result("layers.0.wq:param.weight", Verdict.PASS, 0, ratio=0.0, finding=Finding.EQUAL),
    result("layers.0.wq:output.0", Verdict.PASS, 1),
    result("layers.1.wq:output.0", Verdict.PASS, 2, ratio=0.875),
)

EQUIVALENT = CheckResult(
    reference="out/reference",
    candidate="out/candidate",
    perturbed=("out/perturbed-1",),
    tensors=(replace(GOOD[0], statistics=replace(MEASURED, unequal=0)), *GOOD[1:]),
    coverage=Coverage(modules=4, hooks_expected=12, hooks_fired=12),
)

UNDECIDED = CheckResult(
    reference="out/reference",
    candidate="out/candidate",
    perturbed=(),
    tensors=(
        GOOD[0],
        result(
            "layers.0.wq:output.0",
            Verdict.UNDECIDED,
            1,
            tolerance=None,
            ratio=None,
            finding=Finding.NO_YARDSTICK,
        ),
        result("layers.1.wq:output.0", Verdict.UNDECIDED, 2, statistics=None, error_eps=None),
    ),
    coverage=Coverage(
        modules=4,
        never_called=("layers.9",),
        hooks_expected=12,
        hooks_fired=11,
        unfired=("step0/layers.1.wq:grad_output.0",),
        faults=("step0/layers.3.wq:output.0: OSError: No space left on device",),
    ),
    notes=(Note(topic=Topic.RUN, text="the last journal line was torn and is ignored"),),
)


def failing(names: int = 12) -> CheckResult:
    wrong = [
        result(
            f"layers.{index}.feed_forward:output.0",
            Verdict.MISMATCH,
            index,
            ratio=123456.0 * (index + 1),
            finding=Finding.CONSTANT_FACTOR,
            statistics=replace(MEASURED, dot=200.0),
        )
        for index in range(names)
    ]
    disagreement = Specifics(ranks=(1,), other_ranks=(0,), relative_error=0.3)
    wrong[1] = replace(
        wrong[1],
        verdict=Verdict.CONFLICT,
        finding=Finding.REPLICAS_DISAGREE,
        specifics=disagreement,
    )
    wrong[2] = replace(wrong[2], ratio=math.inf, error_eps=math.inf, finding=None)
    culprits = [
        Culprit(
            blame=Blame.of(f"layers.{index}.feed_forward", phase=Phase.FORWARD),
            reason=Reason.FIRST_WRONG_OUTPUT,
            evidence=(wrong[index].id,),
        )
        for index in range(10)
    ]
    extra = result("metric:output.0", Verdict.EXTRA, 90, statistics=None)
    extra = replace(extra, finding=Finding.ONLY_IN_CANDIDATE)
    return replace(EQUIVALENT, tensors=(*GOOD, *wrong, extra), culprits=tuple(culprits))


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("equivalent", EQUIVALENT),
        ("failing", failing()),
        ("failing_once", replace(failing(), culprits=failing().culprits[:1])),
        ("undecided", UNDECIDED),
    ],
)
def test_a_report_is_that_of_the_golden_file(name: str, check: CheckResult) -> None:
    check_golden(f"{name}.txt", printed(check))


WIDTHS = (80, 100, 120, 200)


def shown(check: CheckResult, width: int) -> str:
    """As a person sees it in a terminal of that width, without its colours."""
    file = io.StringIO()
    print_check(check, Console(file=file, width=width, force_terminal=True, color_system=None))
    return "".join(line.rstrip() + "\n" for line in file.getvalue().splitlines())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("equivalent", EQUIVALENT),
        ("several", failing()),
        ("card", made(4, wrong_layer=2)),
        ("undecided", UNDECIDED),
    ],
)
def test_a_terminal_shows_its_golden_file(name: str, check: CheckResult, width: int) -> None:
    check_golden(f"terminal/{name}-{width}.txt", shown(check, width))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("check", [EQUIVALENT, failing(), UNDECIDED, made(4, wrong_layer=2)])
def test_a_terminal_of_any_width_breaks_no_word(check: CheckResult, width: int) -> None:
    text = shown(check, width)
    assert max(map(len, text.splitlines())) <= width
    for tensor in (check.failures or check.undecided)[:5]:
        assert str(tensor.id) in text
        assert set(wording.finding(tensor).split()) <= set(text.split())
    whole = {word.strip(",") for word in printed(check).split()}
    heads = {"tensor", "verdict", "error/tolerance", "note", "-"}
    assert {word.strip(",") for word in text.split()} <= whole | heads | set(VERDICTS)


VERDICTS = [verdict.value for verdict in Verdict]


@pytest.mark.parametrize("width", [40, 80])
def test_an_endless_name_stays_whole(width: int) -> None:
    long = replace(failing().failures[0], finding=None)
    long = replace(long, id=replace(long.id, module=".".join(map(str, range(60)))))
    assert f"\n{long.id}\n" in shown(replace(EQUIVALENT, tensors=(long,)), width)


def test_a_card_has_five_facts_and_five_rows() -> None:
    labels = [line.split("  ")[0] for line in printed(made(4, wrong_layer=2)).splitlines()]
    assert labels[0] == "NOT EQUIVALENT: layers.2.feed_forward.w2, backward"
    assert [label for label in labels if label in FACTS] == FACTS
    rows = [label for label in labels if label.startswith("step0/")]
    assert len(rows) == 5


FACTS = ["where", "what", "how sure", "ranks", "next", "why", "values"]


def test_bar_is_drawn_without_a_fancy_letter_where_a_terminal_has_none() -> None:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, "ascii"), width=120)
    print_check(made(4, wrong_layer=2), console)
    console.file.flush()
    assert b"....-####################"[:20] in raw.getvalue()


@pytest.mark.parametrize("check", [EQUIVALENT, failing(), UNDECIDED])
def test_colours_are_for_terminals_only(check: CheckResult) -> None:
    assert "\x1b" not in printed(check)
    assert "\x1b[" in printed(check, terminal=True)


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (EQUIVALENT, "EQUIVALENT in forward: all 3 tensors within tolerance (1 exactly equal"),
        (failing(), "NOT EQUIVALENT: layers.0.feed_forward, forward (and 9 more)"),
        (replace(failing(), culprits=()), "NOT EQUIVALENT: step0/layers.0.feed_forward:output.0"),
        (UNDECIDED, "UNDECIDED: 2 tensors, first step0/layers.0.wq:output.0: differs, and"),
        (replace(EQUIVALENT, tensors=()), "UNDECIDED: nothing could be compared"),
    ],
)
def test_the_headline_says_it_all(check: CheckResult, words: str) -> None:
    assert headline(check).startswith(words)
    assert "\n" not in headline(check)


class TestNames:
    def named(self, name: str) -> CheckResult:
        """A stranger's name at every place where one can stand."""
        wrong = result("x:output.0", Verdict.SHAPE, 0, finding=Finding.CANNOT_BE_ALIGNED)
        wrong = replace(wrong, specifics=Specifics(problem=f"note {name}"))
        wrong = replace(wrong, id=replace(wrong.id, module=name))
        blame = Blame.of(name, phase=Phase.FORWARD)
        culprit = Culprit(blame=blame, reason=Reason.LOSS_ALONE, evidence=(wrong.id,))
        coverage = Coverage(never_called=(name,), faults=(name,), unfired=(name,))
        return replace(
            EQUIVALENT,
            tensors=(wrong,),
            culprits=(culprit, culprit),
            coverage=coverage,
            notes=(Note(topic=Topic.RUN, text=name),),
        )

    @pytest.mark.parametrize("name", HOSTILE)
    def test_are_shown_as_they_are(self, name: str) -> None:
        text = printed(self.named(name))
        module = re.sub(r"[\\:]", r"\\\g<0>", name)  # as in an id
        for words in (
            f"NOT EQUIVALENT: {module}, forward",
            f"why       every module output passes, the loss does not: shape, note {name}",
            f"also      {module}, forward: ",
            f"step0/{module}:output.0",
            f"note {name}",
            f"no gradient reached: {name}",
            f"never called: {name}",
            f"could not be recorded: {name}",
            f"\n{name}\n",
        ):
            assert words in text

    def test_cannot_steer_the_terminal(self) -> None:
        text = printed(self.named("a\x1b[2Jb\rc\x07"))
        assert not {"\x1b", "\r", "\x07"} & set(text)
        assert r"NOT EQUIVALENT: a\x1b[2Jb\rc\x07, forward" in text

    @pytest.mark.parametrize("name", HOSTILE[:1] + HOSTILE[3:4])
    def test_a_console_would_change_them(self, name: str) -> None:
        file = io.StringIO()
        console = Console(file=file, width=150)
        console.print(name)
        assert name not in file.getvalue()


class TestTensor:
    def shown(self, layout: Layout, **more: Any) -> str:
        record = Record(
            id=TensorId.parse("step0/a:param.weight"),
            rank=3,
            sequence=0,
            dtype="float32",
            shape=layout.local_shape,
        )
        tensor = LogicalTensor(
            shape=layout.shape, pieces=(Piece(layout=layout, records=(record,)),)
        )
        file = io.StringIO()
        console = Console(file=file, width=150)
        print_tensor("step0/a:param.weight", replace(tensor, **more), None, console)
        return file.getvalue()

    @pytest.mark.parametrize(
        ("runs", "text"),
        [
            ((Run(0, 4),), "[0:4]"),
            ((Run(None, 2), Run(0, 2)), "[pad 2|0:2]"),
            ((), "[nothing]"),
        ],
    )
    def test_a_layout_is_no_markup(self, runs: tuple[Run, ...], text: str) -> None:
        assert f" {text} " in self.shown(Layout(shape=(4,), runs=(runs,)))

    def test_what_no_rank_holds_is_said(self) -> None:
        layout = Layout(shape=(4,), runs=((Run(0, 2),),))
        assert "no rank holds [2:4]" in self.shown(layout, gaps=("[2:4]",))
        assert "no rank holds" not in self.shown(layout)
