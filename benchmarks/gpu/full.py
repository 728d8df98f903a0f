"""Full tensors of a training step on a GPU: to memory beside the link, to disk beside a raw write.

    python -m benchmarks.gpu.full [large|small|tiny] [--folder FOLDER] [--device cuda|cpu]

Needs a source tree on PYTHONPATH (src and its root). Everything is measured in one process, and
ratios are of that. A part that fails says so with its traceback, and the others go on.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch

import ttrace
from benchmarks.gpu.model import NAMED, GptConfig, Workload, make_workload
from ttrace.capture.memory import CudaDevice
from ttrace.capture.settings import Settings, without_settings
from ttrace.core.ids import Kind
from ttrace.core.record import Summary
from ttrace.trace import segment
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader

_WARM = 3  # chosen: steps before any that counts
_STEPS = 5  # chosen: plain steps, of which the best counts
_COPY_BYTES = 1 << 30
_RAW_BYTES = 1 << 24  # chosen: of one raw write; larger ones were no faster
_MOST_RAW_BYTES = 16 << 30  # chosen: the disk is slow, and its rate does not change after that
_SPARE = 1.3  # chosen: how much more room than bytes a folder must have


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table; `target` is what the ratio should be at least, or at most."""

    what: str
    measured: str
    ratio: float | None = None
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What one recorded step took."""

    seconds: float  # until all of it is written
    link_bytes: int  # that came from the device
    peak_bytes: int
    stage_bytes: int
    summary: Summary | None


def rows(
    config: GptConfig, folder: Path, device: str = "cuda", *, is_written: bool = True
) -> Iterator[Row]:
    """Every measurement of one model, as it comes; `is_written`: also into files."""
    work = make_workload(config, device)
    plain_seconds, plain_bytes = _plain(work)
    count = sum(parameter.numel() for parameter in work.model.parameters())
    yield Row(what="parameters", measured=f"{count / 1e9:.2f} B")
    yield Row(what="plain step", measured=f"{plain_seconds * 1e3:.1f} ms")
    yield Row(what="peak memory of it", measured=f"{plain_bytes / 1e9:.2f} GB")
    link = pinned_rate(device) if device == "cuda" else float("inf")
    yield Row(what="device to pinned memory", measured=f"{link / 1e9:.1f} GB/s")
    with _dropping_bytes(), tempfile.TemporaryDirectory(dir=folder) as made:
        found = _captured(work, Path(made) / "trace", steps=3)
    yield from _described("hashed, not written", found, plain_seconds, link)
    yield _memory_row(found, plain_bytes)
    size = found.summary.bytes_written if found.summary is not None else 0
    if not is_written:
        return
    for name, place in (("/dev/shm", Path("/dev/shm")), ("disk", folder)):
        free = shutil.disk_usage(place).free if place.is_dir() else 0
        if not size or free < size * _SPARE:
            why = f"left out: {free / 1e9:.1f} GB free, a step takes {size / 1e9:.1f}"
            yield Row(what=f"to {name}", measured=why)
            continue
        with tempfile.TemporaryDirectory(dir=place, prefix="ttrace-gpu-") as made:
            yield from _to(name, work, Path(made), plain_seconds, link)


def hashed(work: Workload, folder: Path) -> tuple[float, Captured]:
    """Seconds of a plain step, and one whose bytes are hashed and not written."""
    plain_seconds, _ = _plain(work)
    with _dropping_bytes():
        return plain_seconds, _captured(work, folder / "trace", steps=3)


def _to(
    name: str, work: Workload, folder: Path, plain_seconds: float, link: float
) -> Iterator[Row]:
    """One step into a folder, beside as many raw bytes in the same folder."""
    found = _captured(work, folder / "trace", steps=1, is_synced=True)
    yield from _described(f"to {name}, synced", found, plain_seconds, link)
    yield Row(what=f"to {name}: records with right values", measured=_verified(work, folder))
    written = sum(file.stat().st_size for file in (folder / "trace").rglob("*.safetensors"))
    shutil.rmtree(folder / "trace")
    raw = raw_rate(folder, min(written, _MOST_RAW_BYTES))
    rate = written / found.seconds
    measured = f"{rate / 1e9:.2f} of {raw / 1e9:.2f} GB/s"
    ratio = rate / raw
    yield Row(what=f"to {name}, of a raw write", measured=measured, ratio=ratio, target=">= 0.9")


def _described(what: str, found: Captured, plain_seconds: float, link: float) -> Iterator[Row]:
    rate = found.link_bytes / found.seconds
    told = f"{found.seconds:.3f} s, {found.seconds / plain_seconds:.1f} x plain"
    yield Row(what=what, measured=told)
    told = f"{found.link_bytes / 1e9:.1f} GB at {rate / 1e9:.1f} GB/s"
    yield Row(what=f"{what}: over the link", measured=told, ratio=rate / link, target=">= 0.9")
    summary = found.summary
    if summary is None:
        yield Row(what=f"{what}: trace", measured="has no end: recording failed")
        return
    told = (
        f"{summary.bytes_written / 1e9:.1f} GB, {summary.recording_seconds:.3f} s in hooks, "
        f"{summary.waited_seconds:.3f} s waited, stage {found.stage_bytes / 1e6:.0f} MB"
    )
    yield Row(what=f"{what}: written", measured=told)
    for fault in (*summary.faults, *summary.notes):
        yield Row(what=f"{what}: said", measured=fault)


def _memory_row(found: Captured, plain_bytes: int) -> Row:
    ratio = found.peak_bytes / plain_bytes if plain_bytes else 0.0
    told = f"{found.peak_bytes / 1e9:.2f} GB"
    return Row(what="peak memory while recording", measured=told, ratio=ratio, target="<= 1.02")


def pinned_rate(device: str) -> float:
    """Bytes a second of one large copy into pinned memory, the best of five."""
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
    host = torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    return _COPY_BYTES / min(_seconds(lambda: _copy(host, source)) for _ in range(5))


def _copy(host: torch.Tensor, source: torch.Tensor) -> None:
    host.copy_(source, non_blocking=True)


def raw_rate(folder: Path, size_bytes: int) -> float:
    """Bytes a second of plain writes into one file, synced; the better of two."""
    data = torch.randint(256, (_RAW_BYTES,), dtype=torch.uint8).numpy().data

    def write() -> None:
        file = os.open(folder / "raw.bin", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        for start in range(0, size_bytes, _RAW_BYTES):
            part = data[: min(_RAW_BYTES, size_bytes - start)]
            while part:
                part = part[os.write(file, part) :]
        os.fsync(file)
        os.close(file)

    found = size_bytes / min(_seconds(write) for _ in range(2))
    (folder / "raw.bin").unlink()
    return found


def _plain(work: Workload) -> tuple[float, int]:
    """Seconds of a step, the best of some, and its peak of memory."""
    for _ in range(_WARM):
        work.step()
    _reset_peak()
    return min(_seconds(work.step) for _ in range(_STEPS)), _peak()


def _captured(work: Workload, trace: Path, *, steps: int, is_synced: bool = False) -> Captured:
    """The last of some recorded steps: the first one allocates what the others use."""
    settings = Settings(folder=trace, steps=steps)
    environment = without_settings(os.environ) | settings.to_environment()
    with mock.patch.dict(os.environ, environment, clear=True):
        tracer = ttrace.attach(work.model, work.optimizer)
    if not tracer.enabled:
        raise RuntimeError("the run could not be traced: the log above says why")
    sizes: list[int] = []

    def step() -> None:
        with tracer.step():
            work.step()
        if is_synced:
            _sync(trace)

    _reset_peak()
    with _counted(sizes) as stage:
        for _ in range(steps):
            sizes.clear()
            seconds = _seconds(step)
        peak = _peak()
    (rank,) = Trace.open(trace).ranks.values()
    return Captured(
        seconds=seconds,
        link_bytes=sum(sizes),
        peak_bytes=peak,
        stage_bytes=max(stage, default=0),
        summary=rank.summary,
    )


def _sync(folder: Path) -> None:
    for path in folder.rglob("*.*"):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


@contextmanager
def _counted(sizes: list[int]) -> Iterator[list[int]]:
    """While open, bytes that are fetched from a device are counted; sizes of stages are given."""
    fetch, empty = CudaDevice.fetch, CudaDevice.empty
    stages: list[int] = []

    def fetched(self: CudaDevice, room: torch.Tensor, *args: object) -> object:
        sizes.append(room.nbytes)
        return fetch(self, room, *args)  # type: ignore[arg-type]

    def made(self: CudaDevice, size_bytes: int) -> torch.Tensor:
        stages.append(size_bytes)
        return empty(self, size_bytes)

    with (
        mock.patch.object(CudaDevice, "fetch", fetched),
        mock.patch.object(CudaDevice, "empty", made),
    ):
        yield stages


@contextmanager
def _dropping_bytes() -> Iterator[None]:
    """While open, bytes are hashed and go nowhere: what is left is how fast they come."""

    def write(file: int, data: memoryview, offset: int) -> None:
        """A mock would keep every argument of every call."""

    with mock.patch.object(segment, "_write_all", write):
        yield


def _verified(work: Workload, folder: Path) -> str:
    """How many parameters are in the trace as the step left them, and records with their hash."""
    trace = Trace.open(folder / "trace")
    parameters = dict(work.model.named_parameters())
    right = whole = known = 0
    with SpanReader(folder / "trace") as spans:
        for record in trace.ranks[0].records:
            if record.same_as is None and record.location is not None:
                spans.finish(record)  # raises where the bytes are others than were hashed
                whole += 1
            name = f"{record.id.module}.{record.id.slot}"
            if record.id.kind is Kind.PARAM_AFTER and name in parameters:
                known += 1
                value = parameters[name].detach().cpu().reshape(record.shape)
                right += torch.equal(spans.load(record), value)
    return f"{whole} checksums, {right} of {known} parameters" + ("" if right == known else " !!!")


def _seconds(work: Callable[[], None]) -> float:
    _wait()
    start = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - start


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.full", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMED)}; small and large")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    found: list[tuple[str, Row]] = []
    for name in options.names or ("small", "large"):
        try:
            for row in rows(NAMED[name], options.folder, options.device):
                found.append((name, row))
                print(name, row, flush=True)
        except Exception:  # noqa: BLE001  (the other parts are measured all the same)
            traceback.print_exc()
            found.append((name, Row(what="FAILED", measured="the traceback is above")))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    print_table(found)
    return 1 if any(row.what == "FAILED" for _, row in found) else 0


def print_table(found: list[tuple[str, Row]]) -> None:
    width = max(len(row.what) for _, row in found)
    print(f"\nfull capture, torch {torch.__version__}")
    for name, row in found:
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        print(f"{name:<6} {row.what:<{width}}  {ratio:>8} {row.target:>8}  {row.measured}")


if __name__ == "__main__":
    sys.exit(main())
