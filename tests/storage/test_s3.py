"""A run is recorded to a server of S3 and checked from there; the server may vanish meanwhile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import tiny_train
from tests.support.s3_server import BUCKET, PACKAGES, S3Server
from ttrace import check
from ttrace.report.json_file import read_result

pytestmark = [
    pytest.mark.flow,
    pytest.mark.extras,
    pytest.mark.skipif(
        not (PACKAGES / "s3fs").exists(), reason="`make test-flows` gets s3fs and moto"
    ),
]

# Reads all bytes of a trace; before each tensor but the first it waits for a word.
WALK = """
import sys
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader
trace = Trace.open(sys.argv[1])
with SpanReader(trace.path) as reader:
    for record in trace.ranks[0].records:
        if record.location is not None:
            reader._bytes.close()  # as if no block were kept
            reader.finish(record)
            print(record.id, flush=True)
            sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3") / "server.log") as server:
        yield server


def ttrace(
    server: S3Server, *words: object, spool: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ttrace", *map(str, words)],
        env=server.environment() | ({"TTRACE_SPOOL": str(spool)} if spool else {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_run_is_recorded_to_s3_and_checked_from_there(server: S3Server, tmp_path: Path) -> None:
    there, spool = f"s3://{BUCKET}/runs/wrong", tmp_path / "spool"
    script = ["--", sys.executable, tiny_train.__file__, "--scale", "1.5"]
    made = ttrace(server, "run", "--out", there, *script, spool=spool)
    assert made.returncode == 0, made.stderr
    assert f"39 tensors from 1 of 1 rank in {there}" in made.stdout
    assert list(spool.rglob("*")) == []

    reference, near = tmp_path / "reference", tmp_path / "near"
    noisy = tiny_train.record(tmp_path / "noisy", noise_seed=1)
    tiny_train.record(reference)
    tiny_train.record(near, "--scale", "1.5")
    noise = ["--perturbed", noisy, "--json", tmp_path / "result.json"]
    checked = ttrace(server, "check", reference, there, *noise)
    assert checked.returncode == 1, checked.stderr
    far, close = read_result(tmp_path / "result.json"), check(reference, near, perturbed=[noisy])
    assert {found.id: found.ratio for found in far.tensors} == {
        found.id: found.ratio for found in close.tensors
    }
    assert far.culprits == close.culprits

    again = ttrace(server, "run", "--out", there, "--", "true")
    assert again.returncode == 3
    assert "traces are never overwritten" in again.stderr


def put(server: S3Server, folder: Path, there: str) -> None:
    copy = "import fsspec, sys; fsspec.filesystem('s3').put(*sys.argv[1:], recursive=True)"
    subprocess.run(
        [sys.executable, "-c", copy, f"{folder}/", f"{there}/"],
        env=server.environment(),
        check=True,
    )


def test_a_server_that_vanishes_is_named_with_file_and_offset(tmp_path: Path) -> None:
    with S3Server(tmp_path / "server.log") as server:
        there = f"s3://{BUCKET}/run"
        put(server, tiny_train.record(tmp_path / "trace"), there)
        with subprocess.Popen(
            [sys.executable, "-c", WALK, there],
            env=server.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as reading:
            assert reading.stdout is not None
            assert reading.stdout.readline().startswith("step0/")  # all is well so far
            server.stop()
            _, errors = reading.communicate("\n" * 100, timeout=120)
    assert reading.returncode == 1
    last = errors.strip().splitlines()[-1]
    assert last.startswith(f"ttrace.errors.TraceError: cannot read {there}/rank-00000/seg-00000")
    assert "at byte " in last
    assert "try again" in last
