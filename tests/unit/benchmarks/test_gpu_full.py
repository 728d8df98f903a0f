"""The benchmark of full capture, on a CPU and a tiny model: it needs a GPU only for its rates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu.full import Row, print_table, raw_rate, rows
from benchmarks.gpu.model import LARGE, NAMED, TINY, Gpt


def test_a_tiny_step_is_measured_everywhere(tmp_path: Path) -> None:
    found = {row.what: row for row in rows(TINY, tmp_path, device="cpu")}
    assert found["to disk, of a raw write"].ratio is not None
    told = found["to disk: records with right values"].measured
    assert "!!!" not in told
    checked, _, right, _, known, _ = told.replace(",", "").split()
    assert int(checked) > 100
    assert int(right) == int(known) > 20
    assert list(tmp_path.iterdir()) == []


def test_a_raw_write_leaves_no_file(tmp_path: Path) -> None:
    assert raw_rate(tmp_path, 1 << 20) > 0
    assert list(tmp_path.iterdir()) == []


def test_the_table_has_a_line_for_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    row = Row(what="a", measured="1 GB", ratio=0.91234, target=">= 0.9")
    print_table([("tiny", row), ("tiny", replace(row, what="b", ratio=None))])
    lines = capsys.readouterr().out.splitlines()[2:]
    assert ["0.912" in line for line in lines] == [True, False]


def test_the_large_model_has_the_size_that_it_is_said_to_have() -> None:
    import torch

    with torch.device("meta"):
        model = Gpt(LARGE)
    assert 1.70e9 < sum(parameter.numel() for parameter in model.parameters()) < 1.75e9
    assert NAMED["small"].layers == 8
