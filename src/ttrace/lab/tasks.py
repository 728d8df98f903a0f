"""What a worker is told to do: a function on one rank of a group, or on all that it simulates.

Enters: the file of a function, and its name. Leaves: what it returned.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

_COLLECTIVE_TIMEOUT = timedelta(seconds=60)  # chosen: a rank that never comes is noticed


def perform_rank(
    file: str,
    name: str,
    args: tuple[Any, ...],
    rank: int,
    world_size: int,
    store: str,
    environment: dict[str, str],
) -> Any:
    """What the function returned here, on one rank of a gloo process group."""
    import torch.distributed as dist

    from ttrace.capture.tracer import finish_steps

    function = _load(file, name)
    before = dict(os.environ)
    os.environ |= environment
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=_COLLECTIVE_TIMEOUT,
    )
    try:
        answer = function(*args)
        finish_steps()
        return answer
    finally:
        # Models in reference cycles would keep groups alive, whose threads then spin forever.
        gc.collect()
        dist.destroy_process_group()
        os.environ.clear()
        os.environ |= before


def perform_simulated(
    file: str,
    name: str,
    args: tuple[Any, ...],
    world_size: int,
    environment: dict[str, str],
    timeout_seconds: float,
) -> list[Any]:
    """What the function returned on all ranks, which this process simulates."""
    from ttrace.lab.simulated.world import simulate

    os.environ |= environment  # for good: this process does nothing else
    return simulate(world_size, _load(file, name), args, timeout_seconds)


def _load(file: str, name: str) -> Callable[..., Any]:
    module_name = f"pooled_{Path(file).stem}"
    module = sys.modules.get(module_name)
    if module is None or getattr(module, "__file__", None) != file:
        spec = importlib.util.spec_from_file_location(module_name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    function: Any = module
    for part in name.split("."):
        function = getattr(function, part)
    return function
