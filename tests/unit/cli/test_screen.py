"""What commands leave behind and where, and what they say while they work."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.invoking import invoke, replay
from tests.support.made_results import made
from ttrace.capture.settings import Settings
from ttrace.cli import screen
from ttrace.cli.screen import spoken, telling
from ttrace.errors import CommandFailed
from ttrace.lab.run import TracedRun
from ttrace.report.json_file import render
from ttrace.text import inert_line


def diff(traces: Path, out: Path) -> tuple[object, ...]:
    """A replayed trace cannot be isolated."""
    sides = ("--reference", replay(traces / "good"), "--candidate", replay(traces / "wrong"))
    return ("diff", *sides, "--out", out, "--no-isolate")


@pytest.mark.flow
class TestPage:
    def test_is_left_in_the_folder_also_where_another_is_asked_for(
        self, traces: Path, tmp_path: Path
    ) -> None:
        page = tmp_path / "elsewhere.html"
        invoke(*diff(traces, tmp_path / "out"), "--html", page).require(1, f"report: {page}")
        assert page.read_text() == (tmp_path / "out" / "report.html").read_text()

    def test_goes_to_a_pipe(
        self, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        outcome = invoke(*diff(traces, tmp_path / "out"), "--html", "-")
        assert outcome.out == (tmp_path / "out" / "report.html").read_text()
        assert "NOT EQUIVALENT: second" in outcome.err
        assert [file.name for file in tmp_path.iterdir()] == ["out"]


def lines(text: str) -> list[str]:
    """Without how long it took, and what it cost."""
    cost = r"(, [\d.]+ [KM]B, hooks \d+% of the step)?"
    return [re.sub(rf"\d+(\.\d)? s{cost}$", "N s", line) for line in text.splitlines()]


PLAIN = ["run 1 of 3: reference, N s", "run 2 of 3: candidate, N s"]
PLAIN += ["run 3 of 3: perturbed reference, N s", "compared 38 tensors, N s"]


class TestProgressInAPipe:
    @pytest.mark.flow
    def test_says_what_a_run_cost(self, traces: Path, tmp_path: Path) -> None:
        first = invoke(*diff(traces, tmp_path / "out")).err.splitlines()[0]
        assert re.fullmatch(
            r"run 1 of 3: reference, [\d.]+ s, [\d.]+ KB, hooks \d+% of the step", first
        )

    @pytest.mark.flow
    def test_is_a_line_for_each_run_and_comparison(self, traces: Path, tmp_path: Path) -> None:
        outcome = invoke(*diff(traces, tmp_path / "out"))
        assert lines(outcome.err) == PLAIN
        assert outcome.out.startswith("NOT EQUIVALENT: second")

    @pytest.mark.flow
    def test_leaves_json_alone_on_standard_output(self, traces: Path, tmp_path: Path) -> None:
        outcome = invoke(*diff(traces, tmp_path / "out"), "--json", "-")
        assert outcome.json["exit_code"] == 1
        assert lines(outcome.err)[:4] == PLAIN

    @pytest.mark.flow
    def test_counts_the_runs_that_were_asked_for(self, traces: Path, tmp_path: Path) -> None:
        more = ("--perturbed-runs", "2", "--repeat-reference")
        outcome = invoke(*diff(traces, tmp_path / "out"), *more)
        assert lines(outcome.err) == [
            "run 1 of 5: reference, N s",
            "run 2 of 5: candidate, N s",
            "run 3 of 5: perturbed reference, N s",
            "run 4 of 5: perturbed reference 2, N s",
            "run 5 of 5: reference once more, N s",
            "compared 38 tensors, N s",
        ]

    @pytest.mark.flow
    def test_says_which_run_failed(self, traces: Path, tmp_path: Path) -> None:
        sides = ("--reference", replay(traces / "good"), "--candidate", "false")
        outcome = invoke("diff", *sides, "--out", tmp_path / "out")
        assert outcome.code == 2
        assert lines(outcome.err)[0] == "run 1 of 3: reference, N s"
        assert lines(outcome.err)[1] == "run 2 of 3: candidate, did not end well after N s"

    @pytest.mark.parametrize("seconds", ["9.9 s", "12 s"])
    def test_the_companion_finds_seconds(self, seconds: str) -> None:
        assert lines(f"run 1 of 3: reference, {seconds}") == PLAIN[:1]


def test_a_person_sees_a_spinner_and_no_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    screens: list[io.StringIO] = []

    def open_console(*, stderr: bool = False) -> Console:
        screens.append(io.StringIO())
        return Console(file=screens[-1], force_terminal=stderr, width=100)

    monkeypatch.setattr(screen, "open_console", open_console)
    run = TracedRun(name="candidate", work="", settings=Settings(folder=tmp_path), then=4)
    with telling(lambda _: None) as told:
        told(run)
        told.progress("candidate", 0, 3)
        told.progress("candidate", 3, 3)
    seen = "".join(each.getvalue() for each in screens)
    assert "run 1 of 5: candidate" in seen
    assert "comparing candidate" in seen
    assert not re.search(r"compared 3|candidate, \d", seen)
    assert capsys.readouterr() == ("", "")


def test_the_number_of_runs_grows_with_what_is_known(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    settings = Settings(folder=tmp_path)
    known = {"reference": 2, "candidate": 1, "perturbed-1": 0}
    later = {f"perturbed-{number}": 5 - number for number in range(2, 6)}
    with telling(lambda _: None) as told:
        for names in (known, later):
            for name, then in names.items():
                told(TracedRun(name=name, work="", settings=settings, then=then))
            for part in ("noise 1 of 1", "candidate", "suspects"):
                for done in range(4):
                    told.progress(part, done, 3)
    said = lines(capsys.readouterr().err)
    assert said[2:5] == [
        "run 3 of 3: perturbed reference, N s",
        "compared 3 tensors, N s",
        "run 4 of 7: perturbed reference 2, N s",
    ]
    assert said[-2:] == ["run 7 of 7: perturbed reference 5, N s", "compared 3 tensors, N s"]
    assert len(said) == 9


def test_an_end_by_force_is_told_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def fail(run: TracedRun) -> None:
        raise CommandFailed(run.name)

    run = TracedRun(name="isolation/candidate", work="", settings=Settings(folder=tmp_path))
    with pytest.raises(CommandFailed), telling(fail) as told:
        told(run)
    said = lines(capsys.readouterr().err)
    assert said == ["run 1 of 1: isolated candidate, did not end well after N s"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("reference", "reference"),
        ("perturbed-1", "perturbed reference"),
        ("perturbed-12", "perturbed reference 12"),
        ("isolation/perturbed-1", "isolated perturbed reference"),
        ("isolation/kept/candidate", "isolated with whole modules: candidate"),
        ("isolation/kept/probe", "isolated with whole modules: reference with an error put in"),
        ("isolation/coarse/perturbed-2", "isolated at blocks alone: perturbed reference 2"),
        ("other/thing", "other thing"),
    ],
)
def test_runs_have_names_that_can_be_read(name: str, said: str) -> None:
    assert spoken(name) == said


class TestText:
    """What a command quotes is read, and does nothing: in a terminal and in a job of GitHub."""

    @pytest.mark.parametrize(
        ("name", "shown"),
        [
            ("::error::x", r"\::error::x"),
            (" \n::error::x", r" \n::error::x"),
            ("##[add-mask]x", r"#\x23[add-mask]x"),
            ("\x1b[31mred\u202e", r"\x1b[31mred\u202e"),
            ("[red]x[", "[red]x["),
        ],
    )
    def test_of_a_file_is_inert(
        self, name: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("result.json").write_text(render(made(1)))
        done = invoke("report", "result.json", "--html", name)
        assert (done.out, done.err) == (f"{shown}\n", "")
        missing = invoke("report", f"{name}.json")
        assert missing.err.startswith("ttrace: cannot read ")
        for line in (missing.err + invoke("show", name, "--nope\x1b[2J").err).split("\n"):
            assert inert_line(line) == line

    def test_of_a_fault_of_our_own_is_inert(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_: Path) -> None:
            raise RuntimeError("a\n::error::b\x1b[2J")

        monkeypatch.setattr("ttrace.cli.results.read_result", fail)
        done = invoke("report", "x")
        assert done.code == 3
        assert "\\::error::b\\x1b[2J" in done.err.split("\n")

    def test_of_a_progress_bar_is_inert(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shown = io.StringIO()
        console = Console(file=shown, force_terminal=True, width=100, color_system=None)
        monkeypatch.setattr(screen, "open_console", lambda **_: console)
        with screen.waiting("[red]a[/red]\x1b]0;owned\x07\n::error::b"):
            pass
        with screen.comparing() as progress:
            progress("[link=x]c\x9b31m", 0, 2)
        assert r"[red]a[/red]\x1b]0;owned\x07\n::error::b" in shown.getvalue()
        assert r"comparing [link=x]c\x9b31m" in shown.getvalue()
        assert "\x1b]" not in shown.getvalue()
