"""Which modules made codes, as all ranks of a trace tell together."""

from __future__ import annotations

from pathlib import Path

from ttrace.core.quantised import Quantising
from ttrace.core.record import RankInfo, Summary
from ttrace.trace.reader import Trace
from ttrace.trace.writer import TraceWriter

Told = tuple[Quantising, ...] | None


def trace(root: Path, *ranks: Told) -> Trace:
    for rank, told in enumerate(ranks):
        writer = TraceWriter(root, RankInfo(rank=rank, world_size=len(ranks)))
        writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0, quantising=told))
    return Trace.open(root)


def made(module: str, *codes: str) -> Quantising:
    return Quantising(module=module, codes=codes)


def test_ranks_tell_of_their_own_modules(tmp_path: Path) -> None:
    found = trace(tmp_path, (made("a", "e4m3"), made("b", "e4m3")), (made("a", "e5m2", "e4m3"),))
    assert found.codes == {"a": ["e4m3", "e5m2"], "b": ["e4m3"]}


def test_who_looked_and_saw_none_says_so(tmp_path: Path) -> None:
    assert trace(tmp_path, (), ()).codes == {}


def test_what_one_rank_did_not_look_for_is_not_known(tmp_path: Path) -> None:
    assert trace(tmp_path, (made("a", "e4m3"),), None).codes is None


def test_a_rank_that_did_not_end_tells_nothing(tmp_path: Path) -> None:
    TraceWriter(tmp_path, RankInfo(rank=0, world_size=1)).abandon()
    assert Trace.open(tmp_path).codes is None
