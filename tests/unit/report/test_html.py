"""The data of the HTML page: it says what kinds, verdicts and ids are; no script lists them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.made_results import made
from ttrace.core.ids import Kind, KindGroup
from ttrace.core.results import Verdict
from ttrace.report import html
from ttrace.report.html import payload

PAYLOAD = payload(made(2, wrong_layer=1))
# Words that scripts use for something else: an event, a heading, an element of the page.
OTHER_MEANING = {Kind.INPUT, Verdict.SHAPE, Verdict.MISSING, Verdict.UNDECIDED}


def test_every_kind_has_a_title_a_group_and_its_place_in_order() -> None:
    kinds = PAYLOAD["kinds"]
    assert [kind["name"] for kind in kinds] == list(Kind)
    assert [kind["group"] for kind in kinds] == [kind.group for kind in Kind]
    assert [kind["name"] for kind in kinds if kind["is_before_step"]] == ["param"]
    assert all(kind["title"] for kind in kinds)
    assert len({kind["title"] for kind in kinds}) == len(Kind)


def test_every_group_is_in_one_chart() -> None:
    drawn = [group for chart in PAYLOAD["charts"] for group in chart["groups"]]
    assert sorted(drawn) == sorted(PAYLOAD["groups"]) == sorted(KindGroup)


def test_every_verdict_says_whether_it_is_a_failure_and_how_it_is_drawn() -> None:
    verdicts = PAYLOAD["verdicts"]
    assert [verdict["name"] for verdict in verdicts] == list(Verdict)
    assert [verdict["is_failure"] for verdict in verdicts] == [v.is_failure for v in Verdict]
    by_ratio = {verdict["name"] for verdict in verdicts if not verdict["sign"]}
    assert by_ratio == {Verdict.PASS, Verdict.MISMATCH, Verdict.BORDERLINE}


def test_ids_are_joined_from_pieces_that_are_written_once() -> None:
    result = made(2)
    first, *others = result.tensors
    odd = replace(first, id=replace(first.id, step=3, module="", call=2, slot="a.b"))
    result = replace(result, tensors=(*others, odd))
    sent = payload(result)["comparisons"][0]
    tables = sent["tables"]
    joined = [
        tables["before"][step] + tables["module"][module] + tables["after"][after]
        for step, module, after in zip(sent["step"], sent["module"], sent["after"], strict=True)
    ]
    assert joined == [str(tensor.id) for tensor in result.tensors]
    assert [tables["step"][step] for step in sent["step"]] == [t.id.step for t in result.tensors]
    assert max(Counter(tables["after"]).values()) == 1


@pytest.mark.parametrize("word", sorted({*Kind, *Verdict} - OTHER_MEANING))
def test_no_script_names_a_kind_or_a_verdict(word: str) -> None:
    scripts = "".join(html._part(f"{name}.js") for name in html.SCRIPTS)
    assert re.findall(rf"""["'`]{word}["'`]|\b{word}:""", scripts) == []
