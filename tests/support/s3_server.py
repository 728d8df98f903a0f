"""A server of S3 as a process of this machine (moto), and the environment that leads to it.

`make test-flows` gets what it needs into build/storage: s3fs depends on other versions of packages
than what is pinned here, so only processes that are started with `environment()` see them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "build" / "storage"
BUCKET = "bucket"
_START_SECONDS = 60.0  # chosen: a busy machine imports slowly


class S3Server:
    """Runs until it is stopped, with one empty bucket."""

    def __init__(self, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                env=self.environment(),
                stdout=file,
                stderr=file,
            )

    def __enter__(self) -> Self:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError):
                urlopen(Request(f"{self.url}/{BUCKET}", method="PUT"), timeout=5).close()
                return self
            time.sleep(0.2)
        self.stop()
        raise AssertionError("the S3 server did not start")

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """Of processes that are to find it; nothing leads to a network."""
        return os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, (PACKAGES, ROOT / "src", ROOT))),
            "FSSPEC_S3_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "OMP_NUM_THREADS": "1",
        }

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
