"""The accept list on the command line, with traces of a model of two layers."""

from __future__ import annotations

from pathlib import Path

from tests.support.invoking import Outcome, invoke


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
