"""Calling the command line inside a test, and comparing what it says with golden files."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ttrace.capture.settings import NOISE_SEED, OUT
from ttrace.cli import main

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be strict JSON and nothing else."""
        return strict_json(self.out)

    def require(self, code: int, *words: str) -> None:
        """The exit code, and words of the message; a traceback is never an answer."""
        assert self.code == code, self
        text = self.out + self.err
        assert "Traceback" not in text, text
        for word in words:
            assert word in text, text


def invoke(*arguments: object) -> Outcome:
    """`ttrace arguments`, in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
    handlers = {number: signal.getsignal(number) for number in numbers}
    argv = ["ttrace", *map(str, arguments)]
    try:
        with (
            mock.patch.object(sys, "argv", argv),
            redirect_stdout(out),
            redirect_stderr(err),
            pytest.raises(SystemExit) as ended,
        ):
            main()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read())
    code = ended.value.code
    assert isinstance(code, int)
    return Outcome(code, *texts)


def replay(trace: Path) -> str:
    """A shell command that leaves this trace, or with noise TRACE-noisy, as a run would."""
    return f'cp -r {shlex.quote(str(trace))}${{{NOISE_SEED}:+-noisy}}/. "${OUT}"'


def strict_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def check_golden(name: str, text: str) -> None:
    """UPDATE_GOLDEN=1 in the environment writes the file instead; look at its diff."""
    file = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()
