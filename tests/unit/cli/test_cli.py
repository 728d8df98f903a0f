from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
import typer
from safetensors.torch import load_file
from typer.models import OptionInfo

from tests.support import tiny_train
from tests.support.invoking import Outcome, check_golden, invoke, replay, strict_json
from ttrace.analysis import check as pipeline
from ttrace.capture.settings import PACKED, Settings, pack
from ttrace.cli import app, screen
from ttrace.demo.bugs import BUGS

OUTPUT = "step0/second:output.0"
ROOT = Path(__file__).parents[3]


def describe(commands: Sequence[Callable[..., object]]) -> str:
    """Every command with its arguments and options, as a user may have them in a script."""
    lines = []
    for command in sorted(commands, key=lambda command: command.__name__):
        lines.append(command.__name__.replace("_", "-"))
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
            type_, info = get_args(parameter.annotation)
            required = parameter.default is inspect.Parameter.empty
            what = name.upper()
            if isinstance(info, OptionInfo):
                # In Annotated, typer keeps the first of the names given as the default.
                given = [info.default] if isinstance(info.default, str) else []
                names = [*given, *(info.param_decls or ())]
                what = " ".join(names or [f"--{name.replace('_', '-')}"])
            kind = str(type_) if get_args(type_) else type_.__name__
            default = "required" if required else f"default {parameter.default}"
            lines.append(f"    {what}, {re.sub(r'pathlib[.a-z_]*[.]', '', kind)}, {default}")
    return "\n".join(lines) + "\n"


def commands() -> list[Callable[..., object]]:
    found = [command.callback for command in app.registered_commands]
    assert all(command.name is None for command in app.registered_commands)
    return [command for command in found if command is not None]


class TestFrozen:
    def test_commands_and_options_are_those_of_the_golden_file(self) -> None:
        check_golden("cli.txt", describe(commands()))

    def test_help_says_whole_sentences(self) -> None:
        listed = invoke("--help").out.partition("Commands:")[2].splitlines()
        assert len([line for line in listed if line]) == len(commands())
        assert not any(line.endswith("...") for line in listed)

    def test_a_lost_command_would_be_seen(self) -> None:
        assert describe(commands()[1:]) != describe(commands())

    @pytest.mark.parametrize(
        ("new_type", "new_default"),
        [
            (Annotated[int, typer.Option("--renamed")], 1),
            (Annotated[float, typer.Option()], 1),
            (Annotated[int, typer.Option()], 2),
            (Annotated[int, typer.Argument()], 1),
        ],
    )
    def test_another_option_would_be_seen(self, new_type: Any, new_default: int) -> None:
        def command(some_steps: Annotated[int, typer.Option()] = 1) -> None: ...

        def changed(some_steps: new_type = new_default) -> None: ...

        changed.__annotations__["some_steps"] = new_type
        changed.__name__ = command.__name__
        assert describe([command]) == "command\n    --some-steps, int, default 1\n"
        assert describe([changed]) != describe([command])

    def test_every_command_explains_itself(self) -> None:
        for command in commands():
            name = command.__name__.replace("_", "-")
            outcome = invoke(name, "--help")
            outcome.require(0, f"Usage: ttrace {name}", str(command.__doc__)[:30])


@pytest.fixture
def broken_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever read the text has gone."""

    def fail(*_: object) -> None:
        raise BrokenPipeError("nobody reads")

    monkeypatch.setattr(screen, "print_check", fail)


class TestExitCodes:
    @pytest.mark.parametrize(
        ("candidate", "code", "words"),
        [
            ("good", 0, "EQUIVALENT: all"),
            ("wrong", 1, "NOT EQUIVALENT: second, forward"),
            ("nan", 1, "NOT EQUIVALENT: second, forward"),
        ],
    )
    def test_of_a_check(self, candidate: str, code: int, words: str, traces: Path) -> None:
        perturbed = ("--perturbed", traces / "good-noisy")
        outcome = invoke("check", traces / "good", traces / candidate, *perturbed)
        outcome.require(code, words)
        assert outcome.out.startswith(words)
        assert outcome.err == ""

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ((), "Usage: ttrace"),
            (("frobnicate",), "No such command 'frobnicate'"),
            (("check", "--frob"), "No such option"),
            (("check", "only-one"), "Missing argument"),
            (("diff", "--reference", "true"), "Missing option '--candidate'"),
            (("run", "--out", "x"), "Missing argument"),
            (("run", "--out", "x", "--steps", "0", "--", "true"), "for '--steps'"),
            (("run", "--out", "x", "--noise-seed", "-1", "--", "true"), "for '--noise-seed'"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
    )
    def test_of_bad_usage(
        self,
        arguments: tuple[str, ...],
        words: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        invoke(*arguments).require(3, words)
        assert not any(tmp_path.iterdir())

    def test_of_our_own_fault_is_not_that_of_a_mismatch(
        self, traces: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pipeline, "localize", lambda *_: 1 / 0)
        outcome = invoke("check", traces / "good", traces / "good")
        assert outcome.code == 3
        assert "ZeroDivisionError" in outcome.err

    def test_of_an_interrupt(self, traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(pipeline, "localize", interrupt)
        invoke("check", traces / "good", traces / "good").require(130)


def arguments_of(name: str, traces: Path, tmp_path: Path) -> tuple[object, ...]:
    good, wrong, noisy = traces / "good", traces / "wrong", traces / "good-noisy"
    commands: dict[str, tuple[object, ...]] = {
        "check": ("check", good, wrong, "--perturbed", noisy),
        "diff": ("diff", "--reference", replay(good), "--candidate", replay(wrong)),
        "show": ("show", good),
        "show ID": ("show", good, OUTPUT),
        "export": ("export", good, OUTPUT, tmp_path / "x.safetensors"),
        "run": ("run", "--out", tmp_path / "out"),
        "demo": ("demo", "--list-bugs"),
    }
    # A replayed trace cannot be isolated; test_isolation.py does that with real runs.
    outs = {"diff": ("--out", tmp_path / "out", "--no-isolate")}
    return (*commands[name], *outs.get(name, ()))


COMMANDS = {
    "check": (1, "outcome", "not equivalent"),
    "diff": (1, "outcome", "not equivalent"),
    "show": (0, "tensors", 39),
    "show ID": (0, "shape", [6, 4]),
    "export": (0, "dtype", "float32"),
    "run": (0, "faults", []),
    "demo": (0, None, len(BUGS)),
}


class TestJson:
    def call(self, name: str, target: object, traces: Path, tmp_path: Path) -> Outcome:
        command = ("--", "sh", "-c", replay(traces / "good")) if name == "run" else ()
        return invoke(*arguments_of(name, traces, tmp_path), "--json", target, *command)

    def check(self, name: str, data: object) -> None:
        _, key, value = COMMANDS[name]
        if key is None:
            assert isinstance(data, list)
            assert len(data) == value
        else:
            assert isinstance(data, dict)
            assert data[key] == value

    @pytest.mark.flow
    @pytest.mark.parametrize("name", COMMANDS)
    def test_to_standard_output_is_alone_there(
        self, name: str, traces: Path, tmp_path: Path
    ) -> None:
        outcome = self.call(name, "-", traces, tmp_path)
        outcome.require(COMMANDS[name][0])
        self.check(name, outcome.json)
        assert outcome.err

    @pytest.mark.usefixtures("broken_pipe")
    def test_to_a_file_is_there_though_nobody_reads_the_text(
        self, traces: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "result.json"
        outcome = self.call("check", file, traces, tmp_path)
        outcome.require(3, "nobody reads")
        self.check("check", strict_json(file.read_text()))

    @pytest.mark.flow
    @pytest.mark.parametrize("name", COMMANDS)
    def test_to_a_file_leaves_the_text(self, name: str, traces: Path, tmp_path: Path) -> None:
        file = tmp_path / "result.json"
        outcome = self.call(name, file, traces, tmp_path)
        outcome.require(COMMANDS[name][0])
        self.check(name, strict_json(file.read_text()))
        assert outcome.out
        assert not outcome.out.startswith(("{", "["))

    def test_has_no_infinity(self, traces: Path, tmp_path: Path) -> None:
        """A parameter has no tolerance before the first step: one that differs is beyond all."""
        other = tiny_train.record(tmp_path / "other", "--seed", "1")
        noisy = ("--perturbed", traces / "good-noisy")
        outcome = invoke("check", traces / "good", other, *noisy, "--json", "-")
        ratios = {tensor["id"]: tensor["ratio"] for tensor in outcome.json["tensors"]}
        assert ratios["step0/first:param.weight"] == "inf"

    @pytest.mark.parametrize("text", ["NaN", "[Infinity]", "text {}"])
    def test_strictness_can_fail(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"not JSON|Expecting"):
            strict_json(text)


class TestShow:
    def test_a_trace(self, traces: Path) -> None:
        outcome = invoke("show", traces / "good-noisy")
        outcome.require(0, OUTPUT, "seed 1: a perturbed reference", "1 of 1")

    def test_a_tensor(self, traces: Path) -> None:
        outcome = invoke("show", traces / "good", OUTPUT)
        outcome.require(0, "[6, 4]", "float32", "shard", "[0:6, 0:4]")

    def test_export_writes_what_was_recorded(self, traces: Path, tmp_path: Path) -> None:
        file = tmp_path / "x.safetensors"
        invoke("export", traces / "good", OUTPUT, file).require(0, str(file))
        tensor = load_file(file)[OUTPUT]
        shown = invoke("show", traces / "good", OUTPUT, "--json", "-").json
        assert float(tensor.double().norm()) == pytest.approx(shown["norm"], rel=1e-6)

    def test_bugs_are_listed(self) -> None:
        outcome = invoke("demo", "--list-bugs")
        outcome.require(0)
        assert [line.split()[0] for line in outcome.out.splitlines()] == [b.name for b in BUGS]


@pytest.mark.flow
class TestDiff:
    def test_keeps_the_traces_and_the_result(self, traces: Path, tmp_path: Path) -> None:
        outcome = invoke(*arguments_of("diff", traces, tmp_path), "--perturbed-runs", "2")
        outcome.require(1, f"traces and result.json in {tmp_path / 'out'}")
        assert {path.name for path in (tmp_path / "out").iterdir()} == {
            "reference",
            "perturbed-1",
            "perturbed-2",
            "candidate",
            "report.html",
            "result.json",
        }
        result = strict_json((tmp_path / "out" / "result.json").read_text())
        assert result["culprits"][0]["blame"]["modules"] == ["second"]

    @pytest.mark.usefixtures("broken_pipe")
    def test_keeps_the_result_that_could_not_be_printed(self, traces: Path, tmp_path: Path) -> None:
        invoke(*arguments_of("diff", traces, tmp_path)).require(3, "nobody reads")
        result = strict_json((tmp_path / "out" / "result.json").read_text())
        assert result["outcome"] == "not equivalent"

    def test_chooses_a_folder_by_itself(
        self, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        good = replay(traces / "good")
        invoke("diff", "--reference", good, "--candidate", good).require(0, "ttrace-out/diff-")
        (folder,) = (tmp_path / "ttrace-out").iterdir()
        assert (folder / "result.json").is_file()


class TestIsolationByHand:
    """Every run of an isolation is a command: what a scheduler would start, one by one."""

    @pytest.fixture
    def tapped(self, tmp_path: Path) -> Path:
        return tiny_train.record(tmp_path / "tapped", tap=True)

    def judge(self, tapped: Path, *flags: str) -> Outcome:
        root = tapped.parent
        plain = tiny_train.record(root / "candidate", *flags)
        for run, plans in ((tapped, "reference-plans"), (plain, "candidate-plans")):
            invoke("plan", tapped, run, "--out", root / plans).require(0, "plans of 1 rank in")
        noisy = tiny_train.record(root / "noisy", plan=root / "reference-plans", noise_seed=1)
        isolated = tiny_train.record(root / "isolated", *flags, plan=root / "candidate-plans")
        options = ("--perturbed", noisy, "--isolated", root / "candidate-plans")
        return invoke("check", tapped, isolated, *options)

    def test_names_what_is_wrong_by_itself(self, tapped: Path) -> None:
        self.judge(tapped, "--scale", "1.5").require(1, "NOT EQUIVALENT: second, forward")

    def test_of_a_correct_twin_is_silent(self, tapped: Path) -> None:
        self.judge(tapped).require(0, "EQUIVALENT: all")

    def test_writes_plans_as_json_says(self, tapped: Path, tmp_path: Path) -> None:
        data = invoke("plan", tapped, tapped, "--out", tmp_path / "plans", "--json", "-").json
        assert data == {"plans": str(tmp_path / "plans"), "ranks": 1}

    def test_overwrites_no_plans(self, tapped: Path, tmp_path: Path) -> None:
        plan = ("plan", tapped, tapped, "--out", tmp_path / "plans")
        invoke(*plan).require(0)
        invoke(*plan).require(3, "exists and is not an empty folder")

    def test_needs_plans_where_they_are_asked_for(self, traces: Path, tmp_path: Path) -> None:
        words = (f"{tmp_path} has no plan-00000.json", "ttrace plan")
        invoke("run", "--plan", tmp_path, "--out", tmp_path / "x", "--", "true").require(3, *words)
        good = traces / "good"
        invoke("check", good, good, "--isolated", tmp_path).require(3, *words)
        assert not (tmp_path / "x").exists()

    def test_says_what_cannot_be_asked_together(self, traces: Path, tmp_path: Path) -> None:
        good = traces / "good"
        asked = ("check", good, good, "--isolated", tmp_path, "--repeated", good)
        invoke(*asked).require(3, "--repeated says nothing of an isolated run")

    @pytest.mark.flow
    def test_tells_the_command_how_it_is_traced(self, traces: Path, tmp_path: Path) -> None:
        (tmp_path / "plans").mkdir()
        (tmp_path / "plans" / "plan-00000.json").touch()
        how = ("--tap", "--plan", tmp_path / "plans", "--noise-seed", "7", "--split-reductions", 2)
        shown = f"env | grep ^TTRACE_ | sort; cp -r {traces / 'good'}/. $TTRACE_OUT"
        invoke("run", *how, "--out", tmp_path / "out", "--", "sh", "-c", shown).require(0)
        settings = Settings(
            folder=tmp_path / "out", noise_seed=7, split=2, tap=True, plan=tmp_path / "plans"
        )
        told = dict(
            line.split("=") for line in (tmp_path / "out" / "output.log").read_text().splitlines()
        )
        packed = {PACKED: pack(settings.to_environment())}
        assert told == settings.to_environment() | packed


@pytest.mark.flow
class TestProcesses:
    """As a user calls it; every process pays for importing torch, so there are few."""

    def ttrace(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"}
        command = [sys.executable, "-m", "ttrace", *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    def test_diff_of_two_scripts(self, tmp_path: Path) -> None:
        script = f"{sys.executable} {ROOT / 'tests' / 'support' / 'tiny_train.py'} --light"
        commands = ("--reference", script, "--candidate", f"{script} --scale 1.5")
        options = ("--out", tmp_path / "out", "--json", "-", "--no-isolate")
        ended = self.ttrace("diff", *commands, *options)
        assert ended.returncode == 1, ended
        result = strict_json(ended.stdout)
        assert result["culprits"][0]["blame"]["modules"] == ["second"]
        assert result["perturbed"] == [str(tmp_path / "out" / "perturbed-1")]
        assert "loss" in (tmp_path / "out" / "candidate" / "output.log").read_text()

    def test_an_error_is_one_message(self, tmp_path: Path) -> None:
        ended = self.ttrace("show", tmp_path)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.startswith(f"ttrace: {tmp_path} is not a trace: expected")
        assert ended.stderr.count("\n") == 1
