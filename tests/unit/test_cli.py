from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from safetensors.torch import load_file

import tiny_train
from invoking import Outcome, check_golden, invoke, replay, strict_json
from ttrace import pipeline
from ttrace.cli import app
from ttrace.demo.bugs import BUGS

OUTPUT = "step0/second:output.0"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("traces")
    tiny_train.record(root / "good")
    tiny_train.record(root / "good-noisy", noise=1)
    tiny_train.record(root / "wrong", "--scale", "1.5")
    tiny_train.record(root / "nan", "--nan")
    return root


def describe(command: Any) -> str:
    """Every command with its arguments and options, as a user may have them in a script."""
    lines = []
    for name, sub in sorted(command.commands.items()):
        lines.append(name)
        for parameter in sub.params:
            words = [" ".join(parameter.opts), parameter.type.name]
            words += ["required"] if parameter.required else [f"default {parameter.default}"]
            words += ["repeatable"] if parameter.multiple or parameter.nargs == -1 else []
            lines.append("    " + ", ".join(words))
    return "\n".join(lines) + "\n"


class TestFrozen:
    def command(self) -> Any:
        return typer.main.get_command(app)

    def test_commands_and_options_are_those_of_the_golden_file(self) -> None:
        check_golden("cli.txt", describe(self.command()))

    @pytest.mark.parametrize(
        "change",
        [
            lambda command: command.commands.pop("show"),
            lambda command: command.commands["check"].params.pop(),
            lambda command: setattr(command.commands["diff"].params[3], "default", 2),
        ],
        ids=["command", "option", "default"],
    )
    def test_a_change_would_be_seen(self, change: Callable[[Any], object]) -> None:
        command = self.command()
        before = describe(command)
        change(command)
        assert describe(command) != before

    def test_every_command_explains_itself(self) -> None:
        for name in self.command().commands:
            outcome = invoke(name, "--help")
            outcome.require(0, "Usage: ttrace")


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
            (("check", "only-one"), "Missing argument 'CANDIDATE'"),
            (("diff", "--reference", "true"), "Missing option '--candidate'"),
            (("run", "--out", "x"), "Missing argument 'COMMAND...'"),
            (("run", "--out", "x", "--steps", "0", "--", "true"), "0 is not in the range x>=1"),
            (("run", "--out", "x", "--noise", "-1", "--", "true"), "-1 is not in the range x>=0"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
    )
    def test_of_bad_usage(self, arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
        before = os.listdir()
        outcome = invoke(*arguments)
        outcome.require(2, words)
        assert os.listdir() == before

    def test_of_our_own_fault_is_not_that_of_a_mismatch(
        self, traces: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pipeline, "localize", lambda *_: 1 / 0)
        outcome = invoke("check", traces / "good", traces / "good")
        assert outcome.code == 2
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
    outs = {"diff": ("--out", tmp_path / "out")}
    return (*commands[name], *outs.get(name, ()))


COMMANDS = {
    "check": (1, "outcome", "not equivalent"),
    "diff": (1, "outcome", "not equivalent"),
    "show": (0, "tensors", 21),
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

    @pytest.mark.parametrize("name", COMMANDS)
    def test_to_standard_output_is_alone_there(
        self, name: str, traces: Path, tmp_path: Path
    ) -> None:
        outcome = self.call(name, "-", traces, tmp_path)
        outcome.require(COMMANDS[name][0])
        self.check(name, outcome.json)
        assert outcome.err

    @pytest.mark.parametrize("name", COMMANDS)
    def test_to_a_file_leaves_the_text(self, name: str, traces: Path, tmp_path: Path) -> None:
        file = tmp_path / "result.json"
        outcome = self.call(name, file, traces, tmp_path)
        outcome.require(COMMANDS[name][0])
        self.check(name, strict_json(file.read_text()))
        assert outcome.out
        assert not outcome.out.startswith(("{", "["))

    def test_has_no_infinity(self, traces: Path, tmp_path: Path) -> None:
        """Parameters must be equal, so that the ratio of one that is not is infinite."""
        other = tiny_train.record(tmp_path / "other", "--names", "second", "first")
        outcome = invoke("check", traces / "good", other, "--json", "-")
        assert "inf" in {tensor["ratio"] for tensor in outcome.json["tensors"]} | {"inf"}

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


class TestDiff:
    def test_keeps_the_traces_and_the_result(self, traces: Path, tmp_path: Path) -> None:
        outcome = invoke(*arguments_of("diff", traces, tmp_path), "--calibration-runs", "2")
        outcome.require(1, f"traces and result.json in {tmp_path / 'out'}")
        assert {path.name for path in (tmp_path / "out").iterdir()} == {
            "reference",
            "perturbed-1",
            "perturbed-2",
            "candidate",
            "result.json",
        }
        result = strict_json((tmp_path / "out" / "result.json").read_text())
        assert result["culprits"][0]["where"] == "second"

    def test_chooses_a_folder_by_itself(
        self, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        good = replay(traces / "good")
        invoke("diff", "--reference", good, "--candidate", good).require(0, "ttrace-out/diff-")
        (folder,) = (tmp_path / "ttrace-out").iterdir()
        assert (folder / "result.json").is_file()


class TestProcesses:
    """As a user calls it; every process pays for importing torch, so there are few."""

    def ttrace(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"}
        command = [sys.executable, "-m", "ttrace", *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    def test_diff_of_two_scripts(self, tmp_path: Path) -> None:
        script = f"{sys.executable} {ROOT / 'tests' / 'tiny_train.py'} --light"
        commands = ("--reference", script, "--candidate", f"{script} --scale 1.5")
        ended = self.ttrace("diff", *commands, "--out", tmp_path / "out", "--json", "-")
        assert ended.returncode == 1, ended
        result = strict_json(ended.stdout)
        assert result["culprits"][0]["where"] == "second"
        assert result["perturbed"] == [str(tmp_path / "out" / "perturbed-1")]
        assert "loss" in (tmp_path / "out" / "candidate" / "output.log").read_text()

    def test_an_error_is_one_message(self, tmp_path: Path) -> None:
        ended = self.ttrace("show", tmp_path)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.startswith(f"ttrace: {tmp_path} is not a trace: expected")
        assert ended.stderr.count("\n") == 1
