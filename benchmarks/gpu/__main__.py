"""Costs of recording on one GPU; the table comes last.

$ python -m benchmarks.gpu [--quick]      (quick: the smaller model, and nothing to disk)
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.gpu.kernel import bandwidths
from benchmarks.gpu.model import LARGE, SMALL, Size
from benchmarks.gpu.recording import Cost, cost

_GIGA = 1e9
_FULL_STEPS = 2  # chosen: each takes tens of gigabytes
_RATE_BYTES = 1 << 30


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick: bool = parser.parse_args().quick
    if not torch.cuda.is_available():
        print("there is no GPU that torch can use")
        return 2
    lines = [f"{torch.cuda.get_device_name()}, torch {torch.__version__}"]
    lines += [
        f"kernel {b.name:<22} sum {b.plain_sum / 1e12:5.2f} TB/s  fingerprint "
        f"{b.fingerprint / 1e12:5.2f} TB/s  ratio {b.fingerprint / b.plain_sum:4.2f}"
        for b in bandwidths()
    ]
    link, disk = _link_rate(), _disk_rate()
    lines.append(f"link {link / _GIGA:.1f} GB/s pinned to the host, disk {disk / _GIGA:.2f} GB/s")
    for name, size in _sizes(quick=quick).items():
        lines += _model(name, size, link, disk, quick=quick)
    print("\n".join(lines))
    return 0


def _sizes(*, quick: bool) -> dict[str, Size]:
    return {"8 layers": SMALL} if quick else {"8 layers": SMALL, "24 layers": LARGE}


def _model(name: str, size: Size, link: float, disk: float, *, quick: bool) -> list[str]:
    plain = _measured("off", size, None)
    lines = [_line(name, plain, plain)]
    fingerprints = _measured("fingerprints", size, "fingerprint")
    lines.append(_line(name, fingerprints, plain))
    if size is not SMALL:  # all of a larger one does not fit into memory several times
        return lines
    full = _measured("full, to memory", size, "full", steps=_FULL_STEPS)
    lines.append(_line(name, full, plain, of=("link", link)))
    if not quick:
        full = _measured("full, to disk", size, "full", steps=1, on_disk=True)
        lines.append(_line(name, full, plain, of=("disk", disk)))
    lines.append(
        f"{name:<10} fingerprints have 1/{full.recorded_bytes / fingerprints.recorded_bytes:.0f} "
        "of the bytes"
    )
    return lines


def _measured(
    name: str, size: Size, payload: str | None, *, steps: int = 8, on_disk: bool = False
) -> Cost:
    found = cost(name, size, payload, steps=steps, on_disk=on_disk)
    gc.collect()
    torch.cuda.empty_cache()
    print(found, flush=True)
    return found


def _line(name: str, found: Cost, plain: Cost, of: tuple[str, float] | None = None) -> str:
    text = (
        f"{name:<10} {found.name:<16} {found.seconds / plain.seconds:6.2f} x  "
        f"{1e3 * found.seconds:8.1f} ms a step  {found.recorded_bytes / _GIGA:8.3f} GB  "
        f"peak {found.peak_bytes / plain.peak_bytes:.3f} x"
    )
    if of is not None:
        rate = found.recorded_bytes / found.seconds
        text += f"  {rate / _GIGA:.2f} GB/s, {rate / of[1]:.2f} of the {of[0]}"
    return text


def _link_rate() -> float:
    source = torch.empty(_RATE_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty(_RATE_BYTES, dtype=torch.uint8, pin_memory=True)
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    start = time.perf_counter()
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return _RATE_BYTES / (time.perf_counter() - start)


def _disk_rate() -> float:
    data = torch.randint(256, (_RATE_BYTES,), dtype=torch.uint8).numpy().data
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        Path(folder, "raw").write_bytes(data)
        return _RATE_BYTES / (time.perf_counter() - start)


if __name__ == "__main__":
    sys.exit(main())
