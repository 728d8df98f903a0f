"""The real megatron-core on CPU with gloo: for tests and examples, where there is no GPU.

    with on_cpu():          # or install(), for a script that does nothing else
        ...                 # build and train as on GPUs

The package asks CUDA for devices, streams and random states in many places; here each of them is
answered for the CPU. No arithmetic of Megatron's is touched. Two modules stand in where the
package has none for this case: a norm for sequence parallelism (else Transformer Engine's), and an
attention for context parallelism (the package's own refuses it).
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ttrace.adapters.patching import replaced

# Set before megatron is imported: its jit_fuser would start a compiler that nothing here needs.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

_FACTORIES = (
    *("tensor", "zeros", "ones", "empty", "full", "arange", "rand", "randn"),
    *("zeros_like", "ones_like", "empty_like", "full_like"),
)


_FOR_GOOD = ExitStack()  # what it holds is undone when it is collected, so it must live


def install() -> None:
    """Run Megatron on CPU until the process ends."""
    _FOR_GOOD.enter_context(on_cpu())


@contextmanager
def on_cpu() -> Iterator[None]:
    """While open, Megatron runs on CPU; torch is as before afterwards."""
    opened: Any = torch.cuda.Stream
    if opened is _Nothing:
        yield
        return
    with ExitStack() as stack:
        _patch_torch(stack)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that Transformer Engine and Apex are not installed
            _patch_megatron(stack)
        yield


def _patch_torch(stack: ExitStack) -> None:
    for name in _FACTORIES:
        _replace(stack, torch, name, _without_cuda(getattr(torch, name)))
    generator = torch.default_generator

    def get_rng_state(*_: Any, **__: Any) -> torch.Tensor:
        return generator.get_state()

    _replace(stack, torch.cuda.random, "get_rng_state", get_rng_state)
    for name, value in {
        "current_device": lambda: torch.device("cpu"),
        "Stream": _Nothing,
        "Event": _Nothing,
        "current_stream": lambda *_: _Nothing(),
        "default_stream": lambda *_: _Nothing(),
        "stream": lambda *_: contextlib.nullcontext(),
        "synchronize": lambda *_: None,
        "get_rng_state": get_rng_state,
        "manual_seed": lambda seed: generator.manual_seed(seed),
    }.items():
        _replace(stack, torch.cuda, name, value)
    _replace(stack, torch.Tensor, "cuda", lambda tensor, *_, **__: tensor)
    _replace(stack, nn.Module, "cuda", lambda module, *_, **__: module)
    _replace(stack, torch.Tensor, "type", _type_as_on_cuda(torch.Tensor.type))
    _replace(stack, dist, "all_gather", _uneven_all_gather(dist.all_gather))
    _replace(stack, dist, "reduce_scatter", _uneven_reduce_scatter(dist.reduce_scatter))


def _patch_megatron(stack: ExitStack) -> None:
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    # Without it the streams of dropout on several ranks are wrong, silently.
    _replace(stack, random, "_set_cuda_rng_state", _set_rng_state)
    # Upstream leaves the name undefined without Transformer Engine.
    _replace(stack, moe_utils, "te_general_gemm", None)
    move = token_dispatcher.maybe_move_tensor_to_cpu

    def splits(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        moved = move(tensor, as_numpy, record_stream)
        return moved.numpy() if as_numpy and torch.is_tensor(moved) else moved

    _replace(stack, token_dispatcher, "maybe_move_tensor_to_cpu", splits)


class _Nothing:
    """A stream or an event: work on CPU is done when the call returns."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, _: str) -> Callable[..., _Nothing]:
        return lambda *_, **__: _Nothing()


def _replace(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    stack.enter_context(replaced(owner, name, value))


def _without_cuda(factory: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return make


def _type_as_on_cuda(original: Callable[..., Any]) -> Callable[..., Any]:
    """The optimizers sort parameters by the name of their type, and know only those of CUDA."""

    def type_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = original(tensor, *args, **kwargs)
        return found if args or kwargs else found.replace("torch.", "torch.cuda.", 1)

    return type_


def _set_rng_state(state: torch.Tensor, *_: Any, **__: Any) -> None:
    torch.set_rng_state(state)


def _uneven_all_gather(original: Callable[..., Any]) -> Callable[..., Any]:
    """Gloo wants equal sizes; broadcasts do not."""

    def all_gather(
        parts: Sequence[torch.Tensor],
        tensor: torch.Tensor,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Any:
        if len({part.shape for part in parts}) == 1:
            return original(parts, tensor, group=group, async_op=async_op)
        for index, part in enumerate(parts):
            if index == dist.get_rank(group):
                part.copy_(tensor)
            dist.broadcast(part, group=group, group_src=index)
        return None

    return all_gather


def _uneven_reduce_scatter(original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_scatter(
        output: torch.Tensor,
        parts: Sequence[torch.Tensor],
        op: Any = dist.ReduceOp.SUM,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Any:
        if len({part.shape for part in parts}) == 1:
            return original(output, parts, op=op, group=group, async_op=async_op)
        for index, part in enumerate(parts):
            total = part.clone()
            dist.all_reduce(total, op=op, group=group)
            if index == dist.get_rank(group):
                output.copy_(total)
        return None

    return reduce_scatter
