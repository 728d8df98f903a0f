"""A store in memory that counts what is asked of it, and fails or lies when it is told to."""

from __future__ import annotations

from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class FaultyStore(MemoryFileSystem):  # type: ignore[misc]
    """`faulty://`: what is asked is counted; `failures` so many reads or writes raise first."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    cachable = False
    asked: ClassVar[list[tuple[str, str, int]]] = []  # what, path, first byte
    failures: ClassVar[int] = 0

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(path.replace("faulty://", "/"))

    @classmethod
    def reset(cls, failures: int = 0) -> None:
        cls.asked.clear()
        cls.failures = failures

    @classmethod
    def count(cls, what: str) -> int:
        return sum(asked[0] == what for asked in cls.asked)

    def find(self, path: str, *args: Any, **more: Any) -> Any:
        self.asked.append(("find", path, 0))
        return super().find(path, *args, **more)

    def info(self, path: str, **more: Any) -> Any:
        self.asked.append(("info", path, 0))
        return super().info(path, **more)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **more: Any
    ) -> bytes:
        self._ask("read", path, start or 0)
        data: bytes = super().cat_file(path, start, end, **more)
        return data

    def pipe_file(self, path: str, value: bytes, *args: Any, **more: Any) -> None:
        self._ask("write", path, 0)
        super().pipe_file(path, value, *args, **more)

    def put_file(self, lpath: str, rpath: str, *args: Any, **more: Any) -> None:
        self._ask("put", rpath, 0)
        super().put_file(lpath, rpath, *args, **more)

    def _ask(self, what: str, path: str, start: int) -> None:
        self.asked.append((what, path, start))
        if self.failures:
            type(self).failures -= 1
            raise ConnectionError("the store was told to fail")


fsspec.register_implementation("faulty", FaultyStore, clobber=True)


def copied(folder: Any, url: str) -> str:
    """A trace on disk as it would be behind the URL."""
    fs = FaultyStore()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            fs.pipe_file(f"{url}/{path.relative_to(folder)}", path.read_bytes())
    FaultyStore.reset()
    return url
