"""Recorded results of the demo and of three bugs, in every form of text.

The files of results are without their drawings and without the finer statistics of what passes.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.support.invoking import GOLDEN, check_golden
from tests.support.printing import printed
from ttrace.core.results import CheckResult
from ttrace.report import github, junit, markdown
from ttrace.report.json_file import read_result

NAMES = ("clean", "column-input-grad", "dp-scale", "row-bias")


def read(name: str, folder: Path) -> CheckResult:
    file = folder / "result.json"
    file.write_bytes(gzip.decompress((GOLDEN / "demo" / f"{name}.json.gz").read_bytes()))
    return read_result(file)


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_result_reads_as_its_golden_files(name: str, tmp_path: Path) -> None:
    result = read(name, tmp_path)
    check_golden(f"demo/{name}.txt", printed(result))
    check_golden(f"demo/{name}.md", markdown.render(result))
    check_golden(f"demo/{name}.junit.xml", junit.render(result))
    check_golden(f"demo/{name}.github.txt", "\n".join(github.workflow_commands(result)) + "\n")
