"""One point of the attack: a writer is run in a process of its own, and what it left is read."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from attacks.crash.disk import DEATHS, Call, Disk, Fault, written
from attacks.crash.program import STEPS, Ledger, State, actions, write_trace
from ttrace.errors import TTraceError
from ttrace.trace.progress import is_recorded
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader

_CLOSING = len(actions()) - 1
_FAULT_OF_OURS = 9  # exit code: something was raised that no caller expects


class Point(NamedTuple):
    """At which call what happens; `then`: the same of a writer that goes on after a death."""

    at: int
    fault: Fault
    then: tuple[int, Fault] | None = None

    def __str__(self) -> str:
        said = f"call {self.at}: {self.fault.value}"
        return said if self.then is None else f"{said}; call {self.then[0]}: {self.then[1].value}"


class Ran(NamedTuple):
    """How many records writers had acknowledged, and what is wrong with what they left."""

    acknowledged: int
    wrong: list[str]


def recorded_calls() -> list[Call]:
    """The calls of a writer to which nothing happens."""
    with tempfile.TemporaryDirectory(prefix="ttrace-crash-") as made:
        folder, listed = Path(made) / "trace", Path(made) / "calls"
        child = os.fork()
        if child == 0:
            disk = Disk()
            disk.install()
            write_trace(folder, Ledger())
            text = "".join(f"{call.name} {call.size}\n" for call in disk.calls)
            listed.write_text(text)
            os._exit(0)
        os.waitpid(child, 0)
        lines = [line.split() for line in listed.read_text().splitlines()]
        calls = [Call(name, int(size)) for name, size in lines]
        _require_all_seen(folder, calls)
    return calls


def _require_all_seen(folder: Path, calls: list[Call]) -> None:
    """A byte that is written in a way which the disk does not see would never be attacked."""
    headers = len(list(folder.rglob("*.safetensors")))  # are written twice
    on_disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert 0 <= written(calls) - on_disk < headers * (1 << 14), (written(calls), on_disk)


def run_point(point: Point) -> Ran:
    """What becomes of it.

    A writer that dies is followed by one that goes on, and by another if that dies as well.
    """
    faults = [(point.at, point.fault), *([point.then] if point.then else [])]
    lives: list[Ledger] = []
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ttrace-crash-") as made:
        folder = Path(made) / "trace"
        for disk in (*(Disk(*fault) for fault in faults), Disk()):
            if lives and _is_whole(folder):
                break  # it died in its last moment, or not at all
            wrong += _lived(folder, disk, lives)
            if disk.at is None and lives[-1][_CLOSING] is not State.DONE:
                wrong.append("a run that was killed could not go on")
            if disk.fault not in DEATHS:
                break
    records = [number for number, action in enumerate(actions()) if action.record is not None]
    acknowledged = sum(life[number] is State.DONE for life in lives for number in records)
    for ledger in lives:
        ledger.close()
    return Ran(acknowledged, wrong)


def _lived(folder: Path, disk: Disk, lives: list[Ledger]) -> list[str]:
    """What is wrong after one more life of the writer."""
    ledger = Ledger()
    code, said = _live(folder, disk, ledger, resume=bool(lives))
    wrong = [f"the writer raised: {said}"] if code == _FAULT_OF_OURS else []
    if lives and ledger[0] is State.DONE:
        had_ended = [step for step in range(STEPS) if _ended(step, lives)]
        wrong += [
            f"step {step} had ended and was not kept"
            for step in had_ended
            if step not in ledger.kept
        ]
    lives.append(ledger)
    return wrong + list(_faults(folder, lives))


def _live(folder: Path, disk: Disk, ledger: Ledger, *, resume: bool = False) -> tuple[int, str]:
    """Run the writer in a process of its own; its exit code, and what it raised."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code, write = 0, os.write
        try:
            disk.install()
            write_trace(folder, ledger, resume=resume)
        except BaseException:  # noqa: BLE001  (whatever it is, it is a finding)
            code = _FAULT_OF_OURS
            write(writing, traceback.format_exc().encode()[-2000:])
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def _is_whole(folder: Path) -> bool:
    try:
        return all(rank.summary is not None for rank in Trace.open(folder).ranks.values())
    except Exception:  # noqa: BLE001  (what it may be was looked at before)
        return False


def _faults(folder: Path, lives: Sequence[Ledger]) -> Iterator[str]:
    """Compare what can be read with what the writers said, the last of them first."""
    last = lives[-1]
    try:
        is_recorded(folder, STEPS)
        trace = Trace.open(folder)
    except TTraceError as error:
        if any(life[0] is State.DONE for life in lives):
            yield f"it cannot be read: {error}"
        return
    except Exception:  # noqa: BLE001  (a traceback where an error was due)
        yield f"reading raised: {traceback.format_exc()[-2000:]}"
        return
    closing = last[_CLOSING]
    (rank,) = trace.ranks.values()
    if rank.summary is not None and closing is State.UNTRIED:
        yield "it was not closed and says that it is whole"
    if rank.summary is None and closing is State.DONE:
        yield "it was closed and says that it is not whole"
    yield from _wrong_records(trace, lives)
    # What was killed leaves a segment without its header, which only the journal needs.
    is_whole = closing is State.DONE and len(lives) == 1
    if is_whole and all(last[n] is not State.REFUSED for n in range(_CLOSING)):
        yield from _wrong_segments(folder)


def _state(number: int, lives: Sequence[Ledger]) -> State:
    """Of a record after several writers: TRIED is that it may be there or not."""
    step = actions()[number].step
    state = lives[0][number]
    for earlier, life in enumerate(lives[1:], start=1):
        if life[0] is State.DONE and step not in life.kept:
            state = life[number]
        elif life[0] is not State.DONE and not _ended(step, lives[:earlier]):
            state = min(state, State.TRIED)  # it may have been cut off before the next death
    return state


def _ended(step: int, lives: Sequence[Ledger]) -> bool:
    ends = [n for n, action in enumerate(actions()) if action.is_end and action.step == step]
    return any(life[number] is State.DONE for life in lives for number in ends)


def _wrong_records(trace: Trace, lives: Sequence[Ledger]) -> Iterator[str]:
    found = {record.id: record for records in trace.by_id().values() for record in records}
    due = [
        (action, _state(number, lives))
        for number, action in enumerate(actions())
        if action.record is not None
    ]
    order = [a.record.id for a, _ in due if a.record is not None and a.record.id in found]
    if order != [record.id for rank in trace.ranks.values() for record in rank.records]:
        yield "records are doubled, or not in their order"
    with SpanReader(trace.path) as reader:
        for action, state in due:
            assert action.record is not None
            assert action.tensor is not None
            record = found.get(action.record.id)
            if record is None:
                if state is State.DONE:
                    yield f"{action.record.id} was written and is lost"
            elif state not in (State.DONE, State.TRIED):
                yield f"{action.record.id} is there and was {state.name.lower()}"
            else:
                try:
                    is_right = torch.equal(reader.load(record), action.tensor)
                except TTraceError as error:
                    yield f"{action.record.id} cannot be read: {error}"
                else:
                    if not is_right or record.dtype != action.record.dtype:
                        yield f"{action.record.id} has other values"


def _wrong_segments(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                file.keys()
        except SafetensorError as error:
            yield f"{path.name} is no safetensors file: {error}"
