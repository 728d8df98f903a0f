"""The command: a table for people, JSON for programs, and exit codes for both."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from tests.support.invoking import invoke
from tests.support.pages import write_files

PAGE = "docs/how-to/whatif.md"


def script(folder: Path, *flags: str) -> str:
    write_files(PAGE, folder)
    return shlex.join([sys.executable, str(folder / "train.py"), *flags])


def test_names_the_layer_and_exits_0(tmp_path: Path) -> None:
    found = invoke(
        *("whatif", "--reference", script(tmp_path)),
        *("--candidate", script(tmp_path, "--float8", "--coarse", "1")),
        *("--high-precision", "layers.*", "--out", tmp_path / "out", "--json", "-"),
    )
    assert found.code == 0
    said = found.json
    assert said["answer"] == "one"
    assert said["groups"][0]["name"] == "layers.1"
    assert "layers.1 carries" in found.err
    assert "run 4 of 6: candidate, in high precision: layers.0" in found.err


def test_exits_2_where_nothing_is_quantised(tmp_path: Path) -> None:
    plain = script(tmp_path)
    invoke(
        *("whatif", "--reference", plain, "--candidate", plain),
        *("--high-precision", "layers.*", "--out", tmp_path / "out"),
    ).require(2, "nothing in layers.* is quantised by a cast")


def test_exits_3_after_another_kind_of_group(tmp_path: Path) -> None:
    invoke(
        *("whatif", "--reference", "true", "--candidate", "true", "--high-precision", "*"),
        *("--by", "rank", "--out", tmp_path / "out"),
    ).require(3, "--by must be layer or module, found 'rank'")
