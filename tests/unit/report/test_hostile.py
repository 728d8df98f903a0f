"""Names of a stranger in every form of report: they are read, and do nothing."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.support.hostile import PAYLOADS, full, hostile
from tests.support.invoking import invoke, strict_json
from ttrace.core.results import CheckResult, Verdict
from ttrace.report import forms, github, html, junit, markdown, trackers
from ttrace.report.html import payload
from ttrace.report.json_file import render
from ttrace.testing.equivalence import failure_message
from ttrace.text import inert

FRIENDLY = full()
PAGE = html.render(FRIENDLY)


def require_lines(text: str) -> None:
    """Lines of visible characters, of which none is a command to a runner of CI jobs."""
    for line in text.split("\n"):
        assert inert(line) == line
        assert not line.lstrip().startswith("::")
    text.encode()


class Parsed(HTMLParser):
    """The elements of a page, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, Any]] = []
        self.comments: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, attrs))

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def texts(data: Any) -> list[str]:
    if isinstance(data, str):
        return [data]
    if isinstance(data, dict):
        return [text for pair in data.items() for value in pair for text in texts(value)]
    return [text for value in data for text in texts(value)] if isinstance(data, list) else []


def in_html(result: CheckResult) -> None:
    page = html.render(result)
    page.encode()
    assert Parsed(page).elements == Parsed(PAGE).elements
    assert Parsed(page).comments == []
    without = re.compile(r'<title>.*?</title>|<h1.*?</h1>|(?<=type="text/plain">)[^<]*', re.DOTALL)
    assert without.sub("", page) == without.sub("", PAGE)
    packed = re.search(r'type="text/plain">([^<]*)<', page)
    assert packed is not None
    data = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    assert data == json.loads(json.dumps(payload(result)))
    in_one_markdown(data.pop("issue"))
    for text in texts(data):
        assert inert(text) == text
    for comparison in data["comparisons"]:
        assert len({*comparison["tables"]["module"]}) == len(comparison["tables"]["module"])


def tokens(text: str) -> list[Token]:
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    return [each for block in parser.parse(text) for each in (block, *(block.children or ()))]


def in_one_markdown(text: str) -> None:
    require_lines(text)
    plain = {token.type for token in tokens(markdown.render(FRIENDLY))}
    found = tokens(text)
    assert {token.type for token in found} <= plain
    assert [t.tag for t in found if t.type == "heading_open"] == ["h3"]
    for token in found:
        if token.type == "text":  # what GitHub would look for mentions, issues and links in
            assert re.fullmatch(r"[\w ,.:;()/%+<>-]*", token.content), token.content
            assert not re.search(r"www\.|://|GH-", token.content)
    for token in found:
        if token.type == "fence":  # code may begin with anything
            text = text.replace(token.content, "")
    rows = [line for line in text.split("\n") if line.startswith("| ")]
    assert {line.count("|") for line in rows} <= {5}


def in_markdown(result: CheckResult) -> None:
    in_one_markdown(markdown.render(result))


def in_junit(result: CheckResult) -> None:
    text = junit.render(result)
    require_lines(text)
    found, plain = ET.fromstring(text), ET.fromstring(junit.render(FRIENDLY))
    assert [(e.tag, *e.attrib) for e in found.iter()] == [(e.tag, *e.attrib) for e in plain.iter()]


def in_github(result: CheckResult) -> None:
    """Each line is one command, with our properties and no others."""
    lines = github.workflow_commands(result)
    assert len(lines) == len(github.workflow_commands(FRIENDLY))
    for line in lines:
        assert inert(line) == line
        command = re.fullmatch(r"::(error|warning|notice) (?P<known>[^:]*)::(?P<words>.*)", line)
        assert command is not None, line
        names = [known.partition("=")[0] for known in command["known"].split(",")]
        assert names in (["title"], ["file", "line", "title"]), line
        assert not re.search("%(?!25)", command["words"])


def in_terminal(result: CheckResult) -> None:
    shown = io.StringIO()
    forms.TERMINAL.write(result, "", shown)
    require_lines(shown.getvalue())


def in_json(result: CheckResult) -> None:
    text = render(result)
    assert text.isascii()
    assert not re.search(r"##\w*\[|^\s*::", text, re.MULTILINE)
    data = strict_json(text)
    assert CheckResult.from_dict(data) == result
    words = [e["words"] for key in ("culprits", "tensors", "notes") for e in data[key]]
    assert all(inert(said) == said for said in words)
    for line in text.splitlines():
        assert inert(line) == line


def in_trackers(result: CheckResult) -> None:
    for row in trackers.rows(result):
        assert all(inert(value) == value for value in row if isinstance(value, str))
    assert trackers.scalars(result) == trackers.scalars(FRIENDLY)


def in_messages(result: CheckResult) -> None:
    """What a failed test says, and print(result)."""
    message = failure_message(result, Path("report.html"))
    require_lines(message)
    assert message.count("\n") == failure_message(FRIENDLY, Path("report.html")).count("\n")
    require_lines(str(result))
    assert "\n" not in str(result)


FORMS = (
    *(in_terminal, in_html, in_markdown, in_junit),
    *(in_github, in_json, in_trackers, in_messages),
)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("name", PAYLOADS)
def test_stays_text(form: Any, name: str) -> None:
    form(hostile(PAYLOADS[name]))


@pytest.mark.parametrize("name", PAYLOADS)
@pytest.mark.parametrize("verdict", [Verdict.UNDECIDED, Verdict.PASS])
def test_headline_of_what_is_left_open_stays_text(name: str, verdict: Verdict) -> None:
    """Of a tensor of which nothing can be said, and of a run that was not recorded whole."""
    result = hostile(PAYLOADS[name])
    kept = (replace(t, verdict=verdict) for t in result.tensors if t.specifics is not None)
    result = replace(result, tensors=tuple(kept), culprits=(), isolation=None)
    assert result.exit_code == 2
    assert inert(str(result)) == str(result)
    (line, *_) = github.workflow_commands(result)
    assert inert(line) == line
    in_terminal(result)
    in_markdown(result)
    titles = re.findall(r"<title>(.*)</title>|<h1.*?>(.*)</h1>", html.render(result))
    assert [unescape("".join(title)) for title in titles] == [str(result)] * 2


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_the_friendly_twin_passes(form: Any) -> None:
    form(FRIENDLY)


@pytest.mark.flow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from([*PAYLOADS.values()]) | st.characters(exclude_categories=())).map(
        "".join
    )
)
@example(text="|")
def test_whatever_it_is_made_of(text: str) -> None:
    for form in FORMS:
        form(hostile(text))


def test_every_form_is_tried() -> None:
    assert len(FORMS) == len(forms.FORMS) + 1  # and what a failed test says


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_file_of_it_makes_every_form(name: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(render(hostile(PAYLOADS[name])), encoding="utf-8")
    made = [tmp_path / name for name in ("page.html", "junit.xml", "issue.md")]
    options = ("--html", made[0], "--junit", made[1], "--markdown", made[2])
    invoke("report", file, *options, "--form", "json=-").require(1)
    for path in made:
        assert path.read_text(encoding="utf-8")
    shown = invoke("report", file)
    shown.require(1, "NOT EQUIVALENT")
    require_lines(shown.out)
    require_lines(invoke("compare-reports", file, file).out)
