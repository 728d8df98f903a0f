"""`ttrace show` and `ttrace export` tell codes and scales of tensors that are kept so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

from tests.support.capturing import Calling, record
from tests.support.kept import Kept, blockwise, trained
from tests.support.logical import write_kept
from ttrace.analysis.inspect import common_block, export, read_kept, view, view_kept
from ttrace.cli.traces import print_tensor
from ttrace.core.layout import Layout
from ttrace.core.quantised import KeptView, QuantisedForm
from ttrace.trace.quantised import Quantised
from ttrace.trace.spans import SpanReader

SHAPE = (8, 96)
FULL = Layout.full(SHAPE)
WHOLE = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))


def kept(values: torch.Tensor, block: tuple[int, ...]) -> Quantised:
    codes, scales = blockwise(values, block)
    form = QuantisedForm(codes="float8_e4m3fn", scales="float32", block=block)
    return Quantised(form, codes, scales)


@pytest.mark.parametrize(
    ("dim", "block", "expected"),
    [
        (0, (4, 96), (4, 96)),  # a scale for each rank
        (1, (8, 48), (8, 48)),
        (0, (1, 32), (1, 32)),
        (1, (1, 16), (1, 16)),
        (1, (8, 32), (8, 16)),  # the second rank's blocks begin at 48
        (None, (8, 96), (8, 96)),
        (None, (8, 64), (8, 64)),
    ],
)
def test_scales_of_all_ranks_are_one_grid(
    tmp_path: Path, dim: int | None, block: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    layouts = [FULL] if dim is None else [FULL.shard(dim, rank, 2) for rank in range(2)]
    halves = [WHOLE] if dim is None else list(WHOLE.chunk(2, dim))
    parts = [kept(half, block) for half in halves]
    tensor = write_kept(tmp_path, dict(enumerate(zip(layouts, parts, strict=True))))
    assert common_block(tensor) == expected
    with SpanReader(tmp_path) as spans:
        read = read_kept(tensor, spans)
    assert read is not None
    assert read.codes.dtype is torch.float8_e4m3fn
    codes = torch.cat([part.codes.float() for part in parts], dim or 0)
    assert torch.equal(read.codes.float(), codes)
    wide = read.scales.repeat_interleave(expected[0], 0).repeat_interleave(expected[1], 1)
    found = read.codes.float() * wide[:, : SHAPE[1]]
    torch.testing.assert_close(found, WHOLE, rtol=2**-3, atol=1e-2)


def test_what_codes_and_scales_are_is_counted(tmp_path: Path) -> None:
    part = kept(WHOLE, (1, 32))
    part.codes[0, :2] = torch.tensor([0.0, -448.0]).to(torch.float8_e4m3fn)
    tensor = write_kept(tmp_path, {0: (FULL, part)})
    with SpanReader(tmp_path) as spans:
        seen = view_kept(tensor, spans)
    assert seen == KeptView(
        codes="float8_e4m3fn",
        scales="float32",
        block=(1, 32),
        zeros=int((part.codes.float() == 0).sum()),
        largest=int((part.codes.float().abs() == 448).sum()),
        lowest_scale=float(part.scales.min()),
        highest_scale=float(part.scales.max()),
    )


def test_parts_in_several_formats_are_told_by_their_values(tmp_path: Path) -> None:
    first, second = (kept(half, (4, 96)) for half in WHOLE.chunk(2))
    other = second._replace(
        form=QuantisedForm(codes="float8_e5m2", scales="float32", block=(4, 96)),
        codes=second.codes.float().to(torch.float8_e5m2),
    )
    layouts = [FULL.shard(0, rank, 2) for rank in range(2)]
    tensor = write_kept(tmp_path, {0: (layouts[0], first), 1: (layouts[1], other)})
    with SpanReader(tmp_path) as spans:
        assert view_kept(tensor, spans) is None
        assert read_kept(tensor, spans) is None


class Quantise(nn.Module):
    def forward(self, x: torch.Tensor) -> Kept:
        return trained(x.detach(), 64.0)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    def forward(self: Calling, x: torch.Tensor) -> torch.Tensor:
        self.quantise(x)
        return x

    model = Calling(forward, quantise=Quantise())
    record(tmp_path / "trace", model, lambda: model(WHOLE))
    return tmp_path / "trace"


def test_show_prints_codes_and_scales(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = view(trace, "step0/quantise:output.0")
    print_tensor("t", seen.tensor, seen.statistics, Console(width=100), seen.kept)
    said = capsys.readouterr().out
    assert "codes        float8_e4m3fn: 0 zero, 0 the largest" in said
    assert "scales       float32 of 8x96: 0.015625" in said
    assert json.loads(json.dumps(seen.to_json()))["kept"]["block"] == [8, 96]
    plain = view(trace, "step0/quantise:input.0")
    assert plain.kept is None
    assert plain.to_json()["kept"] is None


def test_export_has_codes_and_scales_beside_the_values(trace: Path, tmp_path: Path) -> None:
    name = "step0/quantise:output.0"
    facts = export(trace, name, tmp_path / "t.safetensors")
    found = load_file(tmp_path / "t.safetensors")
    assert facts["beside"] == [f"{name}.codes", f"{name}.scales"]
    assert set(found) == {name, *facts["beside"]}
    codes, scales = (found[each] for each in facts["beside"])
    assert codes.dtype is torch.float8_e4m3fn
    assert scales.shape == (1, 1)
    assert torch.equal(codes.float() * scales, found[name])
    assert torch.equal(found[name], trained(WHOLE, 64.0).stands_for)


def test_export_of_a_plain_tensor_has_its_values_alone(trace: Path, tmp_path: Path) -> None:
    facts = export(trace, "step0/quantise:input.0", tmp_path / "t.safetensors")
    assert facts["beside"] == []
    assert set(load_file(tmp_path / "t.safetensors")) == {"step0/quantise:input.0"}
