"""A package outside of ttrace that brings a payload."""

from __future__ import annotations

from pathlib import Path

import pytest

from ttrace.trace.payloads import forget_installed


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, value: str) -> None:
    """Put a package on the path that names a payload, as pip would."""
    about = folder / "outside-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[ttrace.payloads]\nint8_blocks = {value}\n")
    monkeypatch.syspath_prepend(str(folder))
    forget_installed()
