"""The volume of records is what a writer writes, to the byte."""

from pathlib import Path

import pytest

from tests.support.tracing import TrainConfig, trace_here
from ttrace.trace.fingerprint import is_fingerprint
from ttrace.trace.reader import Trace
from ttrace.trace.volume import PlannedRecord, volume_of


@pytest.mark.parametrize("payload", [None, "fingerprint"])
def test_every_file_has_the_bytes_that_are_said(
    payload: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig(layers=2, dim=96, steps=2)
    folder = trace_here(config, tmp_path / "trace", monkeypatch, payload=payload)
    (rank,) = Trace.open(folder).ranks.values()
    seen: set[tuple[str, int]] = set()
    steps: dict[int, list[PlannedRecord]] = {}
    for record in rank.records:
        at = record.location
        is_new = at is not None and (at.segment, at.offset) not in seen
        if at is not None:
            seen.add((at.segment, at.offset))
        is_whole = payload is not None and not is_fingerprint(record)
        planned = PlannedRecord(record, is_new, is_whole)
        steps.setdefault(record.id.step, []).append(planned)
    assert rank.summary is not None
    found = volume_of(
        rank.info, list(steps.values()), rank.summary, fingerprints=payload is not None
    )
    files = list((folder / "rank-00000").iterdir())
    sizes = {file.name: file.stat().st_size for file in files}
    assert found.files == len(files)
    assert found.journal_bytes == sizes["journal.jsonl"]
    assert found.manifest_bytes == sizes["manifest.json"]
    assert found.segment_bytes == sum(n for name, n in sizes.items() if name.startswith("seg-"))
    assert found.records == len(rank.records)
    assert found.value_bytes >= found.segment_bytes - 300_000
