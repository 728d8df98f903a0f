"""One flipped bit in every tensor, journal line and manifest field of a trace of two ranks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attacks.forging import Forged
from attacks.fuzz.base import Base, make
from ttrace.analysis.check import check
from ttrace.errors import CannotCompare, TraceError

RANKS = ("rank-00000", "rank-00001")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return make(tmp_path_factory.mktemp("base"))


def passes(base: Base, file: Path, offset: int) -> bool:
    """Whether the traces are compared though a bit at this place is another."""
    content = file.read_bytes()
    bit = 1 << random.Random(offset).randrange(8)
    try:
        file.write_bytes(content[:offset] + bytes([content[offset] ^ bit]) + content[offset + 1 :])
        check(base.trace("reference"), base.trace("candidate"), perturbed=[base.trace("perturbed")])
    except (TraceError, CannotCompare):  # an end without its newline is one that was torn
        return False
    finally:
        file.write_bytes(content)
    return True


@pytest.mark.parametrize("rank", RANKS)
def test_of_every_tensor_is_found(base: Base, rank: str) -> None:
    folder = base.trace("candidate") / rank
    records = [record for record in Forged(folder).records if "at" in record]
    assert len(records) >= 10
    for record in records:
        segment, offset, size, _ = record["at"]
        for place in {offset, offset + size // 2, offset + size - 1}:
            assert not passes(base, folder / segment, place), (record["id"], place)


@pytest.mark.parametrize("rank", RANKS)
def test_of_every_journal_line_is_found(base: Base, rank: str) -> None:
    file = base.trace("candidate") / rank / "journal.jsonl"
    start = 0
    for line in file.read_bytes().splitlines(keepends=True):
        for place in (start, start + len(line) // 2, start + len(line) - 1):
            assert not passes(base, file, place), (line, place)
        start += len(line)


@pytest.mark.parametrize("rank", RANKS)
def test_of_every_manifest_field_is_found(base: Base, rank: str) -> None:
    file = base.trace("candidate") / rank / "manifest.json"
    content = file.read_bytes()
    for key in keys(json.loads(content)):
        place = content.index(json.dumps(key).encode())
        value = content.index(b":", place) + 2 if f'"{key}":'.encode() in content else place
        for each in (place + 1, value):
            assert not passes(base, file, each), (key, each)


def keys(data: Any) -> Iterator[str]:
    """Every key and every text."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield key
            yield from keys(value)
    elif isinstance(data, list):
        for value in data:
            yield from keys(value)
    elif isinstance(data, str) and data:
        yield data


def test_what_lies_between_tensors_has_no_meaning(base: Base) -> None:
    """Alignment gaps and the header for foreign readers: the journal says where everything is."""
    folder = base.trace("candidate") / RANKS[0]
    spans = [record["at"][1:3] for record in Forged(folder).records if "at" in record]
    file = folder / "seg-00000.safetensors"
    outside = [
        place
        for place in range(0, file.stat().st_size, 997)
        if not any(offset <= place < offset + size for offset, size in spans)
    ]
    for place in outside[:3] + outside[-3:]:
        assert passes(base, file, place)
