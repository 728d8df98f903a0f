"""Quantised tensors come back as what their codes and scales stand for, bit for bit."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ttrace.core.door import Refused
from ttrace.core.formats import values_of
from ttrace.core.ids import TensorId
from ttrace.core.quantised import CODES, SCALES, QuantisedForm
from ttrace.core.record import Location, PayloadRef, RankInfo, Record
from ttrace.errors import UsageError
from ttrace.trace.payload import Span
from ttrace.trace.payloads import payload_named, payload_of
from ttrace.trace.quantised import (
    QUANTISED,
    Aspect,
    Quantised,
    codes_dtype,
    decoder_of,
    form_of,
    is_quantised,
)
from ttrace.trace.reader import require_sound

FP4 = "float4_e2m1fn"


def record_of(kept: Quantised) -> Record:
    made = Record(
        id=TensorId.parse("step0/a:output.0"),
        rank=0,
        sequence=0,
        dtype="float32",
        shape=tuple(kept.codes.shape),
    )
    return made.stored_as(kept.described())


def read(
    kept: Quantised, part: Aspect = Aspect.VALUES, first: int = 0, count: int | None = None
) -> Tensor:
    """What a span of a record gives, and no byte of it is read beyond its end."""
    record, data = record_of(kept), kept.packed()
    assert QUANTISED.size_bytes(record) == data.numel()

    def fetch(record: Record, start: int, size: int, into: memoryview | None) -> memoryview:
        assert 0 <= start < start + size <= data.numel()
        return memoryview(bytearray(data[start : start + size].numpy().tobytes()))

    count = math.prod(record.shape) - first if count is None else count
    return decoder_of(part).read(Span(record, first, torch.full((count,), math.nan), fetch))


def bits_to(name: str, codes: Tensor) -> Tensor:
    """Codes as torch keeps them."""
    return codes if name == FP4 else codes.view(getattr(torch, name))


def made(
    shape: tuple[int, ...],
    block: tuple[int, ...],
    *,
    codes: str = "float8_e4m3fn",
    scales: str = "float32",
    divides: bool = False,
    overall: float | None = None,
) -> Quantised:
    """Random codes that are numbers, and random scales."""
    draw = torch.Generator().manual_seed(0)
    form = QuantisedForm(
        codes=codes, scales=scales, block=block, divides=divides, has_overall=overall is not None
    )
    whole = torch.randint(0, 16 if codes == FP4 else 120, shape, generator=draw).to(torch.uint8)
    grid = torch.rand(form.grid(shape), generator=draw) + 0.5
    one = None if overall is None else torch.tensor([overall])
    return Quantised(form, bits_to(codes, whole), grid.to(getattr(torch, scales)), one)


def expected(kept: Quantised) -> Tensor:
    """The same by torch: each scale repeated for its block."""
    wide = kept.scales.float()
    for dim, block in enumerate(kept.form.block):
        wide = wide.repeat_interleave(block, dim).narrow(dim, 0, kept.codes.shape[dim])
    codes = kept.codes.float()
    if kept.form.codes == FP4:
        codes = torch.tensor(values_of(FP4))[kept.codes.int()].float()
    if kept.form.divides:
        return codes / wide
    return codes * (wide if kept.overall is None else kept.overall * wide)


@pytest.mark.parametrize("codes", CODES)
def test_every_code_is_the_number_that_torch_has_for_it(codes: str) -> None:
    count = 16 if codes == FP4 else 256
    form = QuantisedForm(codes=codes, scales="float32", block=(count,))
    whole = torch.arange(count).to(torch.uint8)
    kept = Quantised(form, bits_to(codes, whole), torch.ones(1))
    by_torch = torch.tensor(values_of(FP4)) if codes == FP4 else kept.codes.float()
    torch.testing.assert_close(read(kept), by_torch, rtol=0, atol=0, equal_nan=True)
    by_themselves = read(kept, Aspect.CODES)
    torch.testing.assert_close(by_themselves, by_torch, rtol=0, atol=0, equal_nan=True)
    again = by_themselves.to(codes_dtype(form)).float()
    torch.testing.assert_close(again, by_torch, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("scales", SCALES)
def test_every_scale_is_the_number_that_torch_has_for_it(scales: str) -> None:
    """All of those of a byte, and as many of wider ones."""
    dtype = getattr(torch, scales)
    found = torch.arange(256).to(torch.uint8)
    numbers = found.view(dtype) if dtype.itemsize == 1 else (found.float() / 7).to(dtype)
    form = QuantisedForm(codes="int8", scales=scales, block=(1,))
    kept = Quantised(form, torch.ones(256, dtype=torch.int8), numbers)
    for part in (Aspect.VALUES, Aspect.SCALES):
        torch.testing.assert_close(
            read(kept, part), numbers.float(), rtol=0, atol=0, equal_nan=True
        )


LAYOUTS = {
    "per tensor": made((6, 10), (6, 10)),
    "per row": made((6, 10), (1, 10), divides=True),
    "per column": made((6, 10), (6, 1)),
    "1x32": made((5, 96), (1, 32), scales="float8_e8m0fnu", codes="float8_e5m2"),
    "1x16 under one scale": made((4, 48), (1, 16), codes=FP4, scales="float8_e4m3fn", overall=0.01),
    "128x128, cut off": made((200, 130), (128, 128)),
    "odd codes of four bits": made((3, 5), (1, 5), codes=FP4),
    "three dims": made((3, 4, 10), (2, 1, 4), codes="int8"),
    "a number": made((), ()),
    "one size of a dim": made((1, 1, 7), (1, 1, 3)),
}


@pytest.mark.parametrize("kept", LAYOUTS.values(), ids=LAYOUTS)
def test_values_are_codes_times_the_scales_of_their_blocks(kept: Quantised) -> None:
    values = read(kept).view(kept.codes.shape)
    assert torch.equal(values, expected(kept))
    parts = read(kept, Aspect.CODES) * read(kept, Aspect.SCALES)
    torch.testing.assert_close(parts, values.flatten(), rtol=1e-6, atol=0)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_span_is_that_part_of_the_whole(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    block = tuple(data.draw(st.integers(1, size)) for size in shape)
    codes = data.draw(st.sampled_from(["float8_e4m3fn", FP4]))
    kept = made(shape, block, codes=codes, overall=data.draw(st.sampled_from([None, 0.5])))
    first = data.draw(st.integers(0, math.prod(shape)))
    count = data.draw(st.integers(0, math.prod(shape) - first))
    assert torch.equal(
        read(kept, first=first, count=count), expected(kept).flatten()[first : first + count]
    )


def test_dims_in_another_order_take_their_scales_along() -> None:
    for dims in itertools.permutations(range(3)):
        for codes in ("int8", FP4):
            kept = made((3, 4, 10), (2, 1, 4), codes=codes)
            turned = kept.permuted(dims)
            values = read(turned).view(turned.codes.shape)
            assert torch.equal(values, expected(kept).permute(dims))


def test_a_span_reads_no_more_scales_than_it_has_elements() -> None:
    kept = made((2, 1000), (2, 1))
    sizes: list[int] = []
    data = kept.packed()

    def fetch(record: Record, start: int, size: int, into: memoryview | None) -> memoryview:
        sizes.append(size)
        return memoryview(bytearray(data[start : start + size].numpy().tobytes()))

    QUANTISED.read(Span(record_of(kept), 999, torch.empty(2), fetch))
    assert sum(sizes) == 2 * (1 + 4)


HOSTILE: dict[str, dict[str, Any]] = {
    "no parameters": {},
    "codes of sixteen bits": {"codes": "float16", "scales": "float32", "block": [2, 2]},
    "scales of no numbers": {"codes": "int8", "scales": "int64", "block": [2, 2]},
    "a block of nothing": {"codes": "int8", "scales": "float32", "block": [0, 2]},
    "a block below nothing": {"codes": "int8", "scales": "float32", "block": [-1, 2]},
    "a block of other dims": {"codes": "int8", "scales": "float32", "block": [4]},
    "a block that is a word": {"codes": "int8", "scales": "float32", "block": "12"},
    "a truth that is a number": {
        "codes": "int8",
        "scales": "float32",
        "block": [2, 2],
        "divides": 1,
    },
}


@pytest.mark.parametrize("parameters", HOSTILE.values(), ids=HOSTILE)
def test_parameters_that_cannot_be_are_refused(parameters: dict[str, Any]) -> None:
    record = replace(
        record_of(made((2, 4), (2, 2), codes="int8")),
        payload=PayloadRef(name="quantised", parameters=parameters),
        location=Location(segment="seg-00000.safetensors", offset=0, size_bytes=16, xxh3="0" * 16),
    )
    with pytest.raises(Refused):
        require_sound(record, RankInfo(rank=0, world_size=1), ())


SIZES = st.integers(0, 5)


@settings(deadline=None, max_examples=200)
@given(
    shape=st.lists(SIZES, max_size=3).map(tuple),
    codes=st.sampled_from([*CODES, "float32", ""]),
    scales=st.sampled_from([*SCALES, "float64"]),
    block=st.lists(st.sampled_from([0, 1, 2, 3, 7, (1 << 63) - 1]), max_size=4),
    data=st.data(),
)
def test_what_is_let_in_is_read_within_its_bytes(
    shape: tuple[int, ...], codes: str, scales: str, block: list[int], data: st.DataObject
) -> None:
    parameters = {"codes": codes, "scales": scales, "block": block, "overall": True}
    payload = PayloadRef(name="quantised", parameters=parameters)
    record = replace(record_of(made((1,), (1,))), shape=shape, payload=payload)
    try:
        size_bytes = QUANTISED.size_bytes(record)
    except ValueError:
        return

    def fetch(record: Record, start: int, size: int, into: memoryview | None) -> memoryview:
        assert 0 <= start < start + size <= size_bytes
        return memoryview(bytearray(size))

    first = data.draw(st.integers(0, math.prod(shape)))
    count = data.draw(st.integers(0, math.prod(shape) - first))
    for aspect in Aspect:
        decoder_of(aspect).read(Span(record, first, torch.empty(count), fetch))


@pytest.mark.parametrize(("size_bytes", "is_sound"), [(16, True), (15, False), (17, False)])
def test_bytes_are_as_many_as_codes_and_scales_take(size_bytes: int, is_sound: bool) -> None:
    record = replace(
        record_of(made((2, 4), (2, 2), codes="int8")),
        location=Location(
            segment="seg-00000.safetensors", offset=0, size_bytes=size_bytes, xxh3="0" * 16
        ),
    )
    info = RankInfo(rank=0, world_size=1)
    if is_sound:
        require_sound(record, info, ())
    else:
        with pytest.raises(Refused, match="16 bytes"):
            require_sound(record, info, ())


def test_whole_numbers_have_no_codes() -> None:
    whole = replace(record_of(made((2,), (2,))), dtype="int64")
    with pytest.raises(ValueError, match="floating"):
        QUANTISED.size_bytes(whole)


def test_values_are_of_the_dtype_of_the_tensor() -> None:
    kept = made((6, 10), (1, 10))
    record = replace(record_of(kept), dtype="bfloat16")
    data = kept.packed().numpy().tobytes()
    assert QUANTISED.read_dtype(record) is torch.bfloat16
    assert decoder_of(Aspect.CODES).read_dtype(record) is torch.float32
    span = Span(
        record,
        0,
        torch.empty(60, dtype=torch.bfloat16),
        lambda _, start, size, into: memoryview(bytearray(data[start : start + size])),
    )
    assert torch.equal(QUANTISED.read(span).view(6, 10), expected(kept).bfloat16())


def test_a_record_says_how_it_is_kept() -> None:
    kept = made((2, 4), (1, 4), divides=True)
    record = record_of(kept)
    assert record.payload == PayloadRef(
        name="quantised",
        parameters={
            "codes": "float8_e4m3fn",
            "scales": "float32",
            "block": [1, 4],
            "divides": True,
            "overall": False,
        },
    )
    assert form_of(record) == kept.form
    assert payload_of(record) is QUANTISED
    assert is_quantised(record)
    assert not is_quantised(replace(record, payload=None))


def test_no_run_asks_for_it() -> None:
    with pytest.raises(UsageError, match="'quantised' was asked for"):
        payload_named("quantised")
