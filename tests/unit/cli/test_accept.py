"""The accept list on the command line, with traces of a model of two layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.invoking import Outcome, invoke
from tests.support.made_results import made
from ttrace.analysis.accept import acceptances
from ttrace.core.ids import TensorId
from ttrace.report.json_file import render
from ttrace.text import inert


class TestAccept:
    def checked(self, traces: Path, *more: object) -> Outcome:
        noisy = ("--perturbed", traces / "good-noisy")
        return invoke("check", traces / "good", traces / "wrong", *noisy, *more)

    def test_a_failure_that_was_accepted_fails_no_more(self, traces: Path, tmp_path: Path) -> None:
        file, result = tmp_path / "accept.toml", tmp_path / "result.json"
        self.checked(traces, "--json", result).require(1)
        accept = ("accept", result, "step*", "--reason", "scaled on purpose", "--file", file)
        invoke(*accept).require(0, f"step* added to {file}")
        done = self.checked(traces, "--accept", file)
        done.require(0, " accepted (", "scaled on purpose")

    def test_beyond_its_bound_it_still_fails(self, traces: Path, tmp_path: Path) -> None:
        file = tmp_path / "accept.toml"
        file.write_text("[[accept]]\nid = 'step*'\nreason = 'small'\nbound = 1.5\n")
        done = self.checked(traces, "--accept", file)
        done.require(1, "NOT EQUIVALENT: second, forward", "beyond its bound of 1.5x their")

    def test_what_does_not_fail_cannot_be_accepted(self, traces: Path, tmp_path: Path) -> None:
        file, result = tmp_path / "accept.toml", tmp_path / "result.json"
        self.checked(traces, "--json", result).require(1)
        told = invoke("accept", result, "step0/none:*", "--reason", "x", "--file", file)
        told.require(3, "no failure of", "is called 'step0/none:*'; there are step0/")
        assert not file.exists()


REASON = 'naïve 🙂 "quoted" \\ \n\x1b[31m\x7f\u202e[[accept]]'


class TestText:
    """Whatever a name or a reason has in it, the list stays TOML, and inert where it is shown."""

    def accepted(self, folder: Path, module: str, reason: str = "why") -> Outcome:
        whole = made(1, wrong_layer=0)
        failure = whole.failures[0]
        named = replace(failure, id=replace(failure.id, module=module))
        result = replace(whole, tensors=(named,), culprits=())
        (folder / "result.json").write_text(render(result), encoding="utf-8")
        given = ("--reason", reason, "--file", folder / "accept.toml")
        return invoke("accept", folder / "result.json", str(named.id), *given)

    def test_any_reason_reads_back(self, tmp_path: Path) -> None:
        done = self.accepted(tmp_path, "norm", REASON)
        done.require(0, f"; 1 failure of {tmp_path / 'result.json'} is accepted by it")
        text = (tmp_path / "accept.toml").read_text(encoding="utf-8")
        assert all(inert(line) == line for line in text.splitlines())
        assert [entry.reason for entry in acceptances(tmp_path / "accept.toml")] == [REASON]

    @pytest.mark.parametrize("module", ["a[0]*?", "a#1", "a:b\n", "\udc80", "a.*\\", "[!a]"])
    def test_an_id_matches_itself(self, module: str, tmp_path: Path) -> None:
        self.accepted(tmp_path, module).require(0)
        (entry,) = acceptances(tmp_path / "accept.toml")
        id_ = TensorId.parse(entry.id)
        assert entry.matches(id_)
        assert id_.module == module

    def test_a_child_is_not_accepted_with_a_later_call(self, tmp_path: Path) -> None:
        self.accepted(tmp_path, "a#1").require(0)
        (entry,) = acceptances(tmp_path / "accept.toml")
        assert not entry.matches(replace(TensorId.parse(entry.id), module="a", call=1))

    def test_what_no_file_can_hold_is_refused(self, tmp_path: Path) -> None:
        self.accepted(tmp_path, "norm", "\udc80").require(3, "cannot be written to")
        assert not (tmp_path / "accept.toml").exists()
