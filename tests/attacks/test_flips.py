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


def stored(folder: Path) -> list[dict[str, Any]]:
    return [record for record in Forged(folder).records if "at" in record]


def is_passed(base: Base, folder: Path, record: dict[str, Any]) -> bool:
    """Whether a bit may be another at its start, in its middle or at its end."""
    segment, offset, size, _ = record["at"]
    places = {offset, offset + size // 2, offset + size - 1}
    return any(passes(base, folder / segment, place) for place in places)


def digests(folder: Path) -> set[tuple[str, str]]:
    return {(record["id"], record["at"][3]) for record in stored(folder)}


@pytest.mark.parametrize("rank", RANKS)
def test_of_every_tensor_is_found(base: Base, rank: str) -> None:
    """But of what another rank holds by the same checksum, which is read there."""
    folder, first = base.trace("candidate") / rank, base.trace("candidate") / RANKS[0]
    records = stored(folder)
    assert len(records) >= 10
    known = digests(first) if rank != RANKS[0] else set()
    own = [record for record in records if (record["id"], record["at"][3]) not in known]
    assert own
    assert [record["id"] for record in own if is_passed(base, folder, record)] == []


def test_in_a_replica_that_is_not_read_does_not_change_the_result(base: Base) -> None:
    first, other = (base.trace("candidate") / rank for rank in RANKS)
    known = digests(first)
    same = [record for record in stored(other) if (record["id"], record["at"][3]) in known]
    record = next(record for record in same if is_passed(base, other, record))
    traces = base.trace("reference"), base.trace("candidate")
    before = check(*traces, perturbed=[base.trace("perturbed")])
    file, offset = other / record["at"][0], record["at"][1]
    content = file.read_bytes()
    try:
        file.write_bytes(content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :])
        assert check(*traces, perturbed=[base.trace("perturbed")]) == before
    finally:
        file.write_bytes(content)


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
