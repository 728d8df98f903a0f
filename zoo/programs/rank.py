"""Runs a script on one rank of a pool, as torchrun would: same variables, same `__main__`."""

from __future__ import annotations

import os
import socket
import sys
import types
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch._C import _distributed_c10d as _C

from zoo.programs.program import Run

_PORTS = range(10_000, 30_000)  # below those that Linux hands out


def run_script(run: Run) -> None:
    """Everything one rank does."""
    execute(run)


def execute(run: Run) -> dict[str, Any]:
    """The names that the script leaves. The pool's own process group makes room for its own."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    address: list[object] = [_free_port() if rank == 0 else None]
    dist.broadcast_object_list(address)
    dist.destroy_process_group()
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(address[0]),
    }
    arguments, sys.argv = sys.argv, [str(run.path), *run.words]
    sys.path.insert(0, str(run.folder))  # what stands beside a script can be imported by it
    main, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    try:
        torch.manual_seed(0)
        names = vars(sys.modules["__main__"]) | {"__file__": str(run.path)}
        exec(compile(run.text(), str(run.path), "exec"), names)
        return names
    finally:
        sys.argv, sys.modules["__main__"] = arguments, main
        sys.path.remove(str(run.folder))
        if not dist.is_initialized():  # the pool ends a group after every task
            dist.init_process_group("gloo", store=_C.HashStore(), rank=0, world_size=1)


def _free_port() -> int:
    """One that the system gives to nobody else by itself until the script listens on it.

    Those that it chooses freely it may give to another run before, which would then be joined.
    """
    while True:
        port = _PORTS.start + int.from_bytes(os.urandom(4), "big") % len(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
