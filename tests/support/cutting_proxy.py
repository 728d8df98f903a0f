"""A way to a server that breaks in the middle of answers, so many times."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self


class CuttingProxy:
    """Hands on what both sides say; of answers with a body of some size it cuts the first ones."""

    def __init__(self, port: int, *, cuts: int, least_bytes: int) -> None:
        self.cuts_left = cuts
        self._least_bytes = least_bytes
        self._behind = port
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listening]
        self._threads: list[threading.Thread] = []
        self.port: int = self._listening.getsockname()[1]

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            _shut(each)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _start(self, target: Callable[..., None], *args: socket.socket) -> None:
        self._threads.append(threading.Thread(target=target, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):  # it is shut
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._behind))
                self._sockets += [client, server]
                self._start(self._ask, client, server)
                self._start(self._answer, server, client)

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                server.sendall(data)
        _shut(server)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if len(data) >= self._least_bytes and self._cuts():
                    client.sendall(data[: len(data) // 2])
                    break
                client.sendall(data)
        _shut(client)

    def _cuts(self) -> bool:
        with self._lock:
            self.cuts_left -= 1
            return self.cuts_left >= 0


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
