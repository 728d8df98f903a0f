"""Machine forms: JSON against its schema and back, JUnit, Markdown, GitHub, and the HTML's text."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import runpy
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.hostile import full
from tests.support.invoking import GOLDEN, check_golden, invoke, strict_json
from tests.support.made_results import CODE, made
from ttrace.core.blame import Phase, Reason, Stage
from ttrace.core.door import Refused
from ttrace.core.finding import Finding, Topic
from ttrace.core.results import Acceptance, AcceptedTensors, CheckResult, Verdict
from ttrace.core.statistics import Statistic
from ttrace.report import forms, github, html, junit, markdown, schema
from ttrace.report.html import payload
from ttrace.report.json_file import render
from ttrace.report.schema import make_schema

CLEAN, FAILING = made(2), made(2, wrong_layer=1)
SCHEMA = make_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


RESULTS = {"clean": CLEAN, "failing": FAILING, "full": full()}


@pytest.mark.parametrize("name", RESULTS)
def test_json_obeys_its_schema_and_reads_back(name: str) -> None:
    data = strict_json(render(RESULTS[name]))
    VALIDATOR.validate(data)
    assert CheckResult.from_dict(data) == RESULTS[name]


@pytest.mark.parametrize("other", [4, 6, "5", None])
def test_result_of_another_schema_is_refused_with_both_schemas(other: Any, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps(strict_json(render(FAILING)) | {"schema": other}))
    words = f"{file}: found a result of schema {other!r}, this ttrace reads schema 5: make it again"
    invoke("report", file).require(3, words)


def test_every_tensor_is_one_line_of_json() -> None:
    both = replace(FAILING, isolation=FAILING)
    lines = [line.strip() for line in render(both).splitlines()]
    assert sum(line.startswith('{"id":"step0/') for line in lines) == 2 * (
        len(FAILING.tensors) + len(FAILING.details)
    )


@pytest.mark.flow
def test_isolated_result_is_part_of_the_schema() -> None:
    both = replace(FAILING, isolation=FAILING)
    data = strict_json(render(both))
    VALIDATOR.validate(data)
    assert CheckResult.from_dict(data) == both


@pytest.mark.parametrize("kind", [Topic, Finding, Reason, Phase, Stage, Verdict, Statistic])
def test_schema_knows_every_word(kind: type[StrEnum]) -> None:
    """A result that has a word which its schema lacks would be refused by whoever goes by it."""
    listed = re.findall(r'"enum":(\[.*?\])', json.dumps(SCHEMA, separators=(",", ":")))
    assert {each.value for each in kind} in [set(json.loads(each)) - {None} for each in listed]


WRONG: dict[str, tuple[str | int, ...]] = {  # what is said, and where it does not belong
    "surprise": ("tensors", 0, "surprise"),
    "told": ("culprits", 0, "told"),
    "a text": ("tensors", 0, "order"),
    "not a verdict": ("tensors", 0, "verdict"),
    "nan or so": ("tensors", 0, "statistics", "error_norm"),
    "-inf": ("tensors", 0, "statistics", "error_norm"),
    "layers.1:output.0": ("culprits", 0, "evidence", 0),
    "step0/layers.1:outputs.0": ("tensors", 0, "id"),
    "a bystander": ("runs", 0, "role"),
    "a shard": ("details", 0, "shards", 0, "role"),
    "no reason": ("culprits", 0, "reason"),
    "no modules": ("culprits", 0, "blame", "modules"),
    "six": ("schema",),
    "3": ("exit_code",),
    "yes": ("counts", "approved"),
    "[0, 4]": ("details", 0, "shards", 0, "runs", 0, 0),
}


def place_in(data: Any, way: Sequence[str | int]) -> Any:
    for step in way:
        data = data[step]
    return data


@pytest.mark.parametrize("value", WRONG)
def test_schema_refuses_what_is_wrong(value: str) -> None:
    data = strict_json(render(FAILING))
    *way, last = WRONG[value]
    place_in(data, way)[last] = value
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(data)


@pytest.mark.parametrize(
    "way", [(), ("tensors", 0), ("culprits", 0, "blame"), ("details", 0), ("runs", 0)]
)
def test_schema_refuses_what_lacks_a_key(way: tuple[str | int, ...]) -> None:
    data = strict_json(render(FAILING))
    for longest in ("tensors", "details", "modules"):
        del data[longest][1:]
    place = place_in(data, way)
    for key in set(place) - {"words"}:
        kept = place.pop(key)
        with pytest.raises(jsonschema.ValidationError, match=f"'{key}' is a required property"):
            VALIDATOR.validate(data)
        place[key] = kept


BEYOND: tuple[tuple[tuple[str | int, ...], object], ...] = (
    (("details", 0, "tiles"), [[0.0]] * 65),
    (("details", 0, "tiles"), [[0.0] * 65]),
    (("details", 0, "examined"), -1),
    (("details", 0, "shards", 0, "role"), "a shard"),
    (("culprits", 0, "code"), [asdict(CODE[0])] * 3),
    (("culprits", 4, "nearest", "explained"), 1.5),
    (("tensors", 0, "statistics", "count"), -1),
    (("tensors", 0, "statistics", "error_norm"), -1.0),
)


@pytest.mark.parametrize(("way", "value"), BEYOND)
def test_schema_and_door_refuse_what_is_beyond_a_limit(
    way: tuple[str | int, ...], value: object
) -> None:
    data = strict_json(render(RESULTS["full"]))
    place_in(data, way[:-1])[way[-1]] = value
    assert not VALIDATOR.is_valid(data)
    with pytest.raises(Refused):
        CheckResult.from_dict(data)


@pytest.mark.parametrize("name", ["clean", "column-input-grad", "dp-scale", "readme", "row-bias"])
def test_recorded_results_obey_the_schema(name: str) -> None:
    data = json.loads(gzip.decompress((GOLDEN / "demo" / f"{name}.json.gz").read_bytes()))
    VALIDATOR.validate(data)


def test_schema_is_a_schema_and_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    runpy.run_path(schema.__file__, run_name="__main__")  # as `python -m`, without a process
    assert json.loads(capsys.readouterr().out) == SCHEMA


@pytest.mark.parametrize("name", ["clean", "failing"])
def test_forms_match_their_golden_files(name: str) -> None:
    result = RESULTS[name]
    check_golden(f"{name}.junit.xml", junit.render(result))
    check_golden(f"{name}.md", markdown.render(result))
    check_golden(f"{name}.github.txt", "\n".join(github.workflow_commands(result)) + "\n")
    shown = (*result.tensors[:1], result["step0/norm:output.0"], *result.failures[:1])
    few = replace(result, tensors=shown, details=())
    check_golden(f"{name}.json", render(few))


def test_junit_counts_its_cases() -> None:
    suite = ET.fromstring(junit.render(FAILING))[0]
    assert int(suite.get("tests") or 0) == len(suite.findall("testcase"))
    assert int(suite.get("failures") or 0) == len(suite.findall("*/failure")) > 1
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert (failure.get("message") or "").startswith("NOT EQUIVALENT")


def test_nothing_compared_is_a_junit_failure() -> None:
    empty = replace(CLEAN, tensors=())
    assert ET.fromstring(junit.render(empty))[0].get("failures") == "1"


def test_html_is_small_alone_and_says_the_verdict_without_a_script() -> None:
    page = html.render(made(64, wrong_layer=40, ranks=8))
    packed = re.search(r'type="text/plain">([^<]*)<', page)
    assert packed is not None
    assert len(page) - len(packed[1]) < 400_000
    assert '<h1 id="headline">NOT EQUIVALENT: layers.40.feed_forward.w2, backward</h1>' in page
    data = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    assert len(data["comparisons"][0]["step"]) == len(made(64).tensors)


def test_html_loads_nothing_from_elsewhere() -> None:
    page = html.render(FAILING)
    assert re.findall(r"""(?:src|href)=["'](?!#)[^"']*""", page) == []
    assert set(re.findall(r"https?://[^\"' )]*", page)) == {"http://www.w3.org/2000/svg"}


def test_report_makes_every_form_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "result.json"
    source.write_text(render(FAILING))
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    files = {form: tmp_path / f"report.{form}" for form in ("html", "junit", "markdown")}
    options = [part for form, file in files.items() for part in (f"--{form}", file)]
    done = invoke("report", source, *options, "--github")
    done.require(1, "::error file=model.py,line=42,title=NOT EQUIVALENT")
    assert files["html"].read_text() == html.render(FAILING)
    assert files["junit"].read_text() == junit.render(FAILING)
    assert files["markdown"].read_text() == summary.read_text() == markdown.render(FAILING)


def test_report_alone_prints(tmp_path: Path) -> None:
    source = tmp_path / "result.json"
    source.write_text(render(CLEAN))
    invoke("report", source).require(0, "EQUIVALENT: all")


def test_report_writes_json_to_a_file_or_a_pipe(tmp_path: Path) -> None:
    """Whatever else is written, standard output has the JSON alone."""
    source = tmp_path / "result.json"
    source.write_text(render(FAILING))
    invoke("report", source, "--json", tmp_path / "again.json").require(1, "again.json")
    assert (tmp_path / "again.json").read_text() == source.read_text()
    piped = invoke("report", source, "--json", "-", "--junit", tmp_path / "junit.xml")
    assert piped.out == source.read_text()
    assert piped.err == f"{tmp_path / 'junit.xml'}\n"


@pytest.mark.parametrize("name", [n for n, f in forms.FORMS.items() if f.target == "FILE"])
def test_every_form_of_one_text_goes_to_a_pipe(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, form = tmp_path / "result.json", forms.FORMS[name]
    source.write_text(render(FAILING))
    monkeypatch.chdir(tmp_path)
    assert isinstance(form, forms.FileForm)
    for options in ((f"--{name}", "-"), ("--form", f"{name}=-")):
        piped = invoke("report", source, *options)
        assert (piped.code, piped.out, piped.err) == (1, form.render(FAILING), "")
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_every_form_has_its_name_and_a_sentence() -> None:
    assert list(forms.FORMS) == [form.name for form in forms.FORMS.values()]
    assert all(form.help.endswith(".") for form in forms.FORMS.values())
    assert {"html", "junit", "markdown", "github", "tensorboard", "json", "terminal"} == {
        *forms.FORMS
    }


OUTSIDE = """
from pathlib import Path
from typing import Any
from ttrace.report.forms import FileForm, FolderForm, LinesForm

def names(result, folder):
    folder.mkdir()
    for tensor in result.failures:
        (folder / f"{tensor.order}.txt").write_text(str(tensor.id))
    return f"{len(result.failures)} names"

TABLE = FileForm(
    name="csv",
    help="Write a table.",
    render=lambda result: "".join(f"{t.id},{t.verdict.value}\\n" for t in result.tensors),
)
NAMES = FolderForm(name="names", help="Write a file for each failure.", fill=names)
COUNT = LinesForm(
    name="count",
    help="Print how many failed.",
    print=lambda result, out: out.write(f"{len(result.failures)} failed\\n"),
)
"""
ENTRY_POINTS = """
[ttrace.report_forms]
csv = outside_form:TABLE
names = outside_form:NAMES
count = outside_form:COUNT
text = outside_form:OUTSIDE
path = outside_form:Path
gone = outside_form_that_is_gone:FORM
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A result, beside an installed package that has forms of its own."""
    site = tmp_path / "site"
    about = site / "outside_form-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "outside_form.py").write_text(OUTSIDE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-form\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(site)
    file = tmp_path / "result.json"
    file.write_text(render(FAILING))
    return file


def test_form_of_another_package_is_found_by_its_name(source: Path, tmp_path: Path) -> None:
    table, names = tmp_path / "table.csv", tmp_path / "names"
    done = invoke(
        *("report", source, "--form", f"csv={table}", "--form", f"names={names}"),
        *("--form", "count", "--junit", tmp_path / "junit.xml"),
    )
    failed = len(FAILING.failures)
    done.require(1, f"{table}\n", f"{failed} names\n", f"{failed} failed\n")
    assert table.read_text().splitlines()[0] == f"{FAILING.tensors[0].id},pass"
    assert len(list(names.iterdir())) == failed
    assert (tmp_path / "junit.xml").read_text() == junit.render(FAILING)
    assert invoke("report", source, "--form", "csv=-").out == table.read_text()


def test_own_forms_have_names_too(source: Path, tmp_path: Path) -> None:
    invoke("report", source, "--form", f"markdown={tmp_path / 'report.md'}").require(1)
    assert (tmp_path / "report.md").read_text() == markdown.render(FAILING)
    assert invoke("report", source, "--form", "terminal").out == invoke("report", source).out


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("svg=x", "no form of report is called 'svg'; there are html, junit,"),
        ("svg=x", "terminal, count, csv, gone, names, path, text"),
        ("csv", "`--form csv=FILE` was expected, found `--form csv`"),
        ("names=", "`--form names=DIR` was expected"),
        ("count=x", "`--form count` was expected, found `--form count=x`"),
        ("gone=x", "outside_form_that_is_gone"),
        ("text=x", "'text' cannot be loaded from outside_form:OUTSIDE"),
        ("path=x", "'path' must be a FileForm, FolderForm or LinesForm"),
    ],
)
def test_wrong_form_is_refused_before_anything_is_written(
    given: str, words: str, source: Path, tmp_path: Path
) -> None:
    file = tmp_path / "junit.xml"
    invoke("report", source, "--junit", file, "--form", given).require(3, words)
    assert not file.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 3}', '{"schema": 1}'])
def test_report_of_something_else_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(text)
    invoke("report", tmp_path / "result.json").require(3, "result")


def test_every_form_says_what_is_accepted_and_why() -> None:
    used = AcceptedTensors(entry=Acceptance(id="step*:grad*", reason="known since May"), count=3)
    idle = AcceptedTensors(entry=Acceptance(id="step*/gone:*", reason="was once"))
    result = replace(
        FAILING,
        culprits=(),
        accepted=(used, idle),
        tensors=tuple(
            replace(t, verdict=Verdict.ACCEPTED) if t.verdict.is_failure else t
            for t in FAILING.tensors
        ),
    )
    assert result.exit_code == 0
    shown = io.StringIO()
    forms.TERMINAL.write(result, "", shown)
    texts = [junit.render(result), markdown.render(result), render(result), shown.getvalue()]
    texts += ["\n".join(github.workflow_commands(result)), str(payload(result))]
    for text in texts:
        assert "known since May" in text
        assert "step*/gone:*" in text
    assert read_back(result).accepted == (used, idle)


def read_back(result: CheckResult) -> CheckResult:
    return CheckResult.from_dict(strict_json(render(result)))
