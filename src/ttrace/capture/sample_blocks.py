"""Calls of modules cut into blocks of samples, so that what quantises has scales of each block.

    wq(x)     cat(wq(x[:2]), wq(x[2:]))

So does a candidate whose ranks hold samples of their own: by this its scales are the reference's
too. Autograd goes through it: a gradient is made block by block, and a weight's is their sum. The
rest of the run, and what hooks see of the module, stays as it was.

Enters: a model and how its calls are cut. Leaves: the same results but for what depends on which
samples come together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from ttrace.adapters.leaves import leaves, map_leaves
from ttrace.adapters.patching import guarding, patched
from ttrace.capture.context import StepContext
from ttrace.core.layout import Runs
from ttrace.trace.plan import SampleBlocks


class CutCalls:
    """Stands around `forward` of the modules that are cut, until it is removed."""

    def __init__(self, context: StepContext, cuts: Sequence[SampleBlocks]) -> None:
        self._context = context
        rank = context.adapter.coordinates().rank
        self._cuts = {(cut.module, cut.microbatch): cut for cut in cuts if cut.rank == rank}
        self._left: set[str] = set()
        self._stack = ExitStack()
        paths = {path for path, _ in self._cuts}
        with guarding(context.guard.harmed):
            for path, module in context.adapter.modules():
                if path in paths:
                    self._stack.enter_context(
                        patched(module, "forward", self._around(path, module))
                    )
        context.guard.handles.add(self)

    def remove(self) -> None:
        self._stack.close()

    def _around(self, path: str, module: nn.Module) -> Callable[..., Any]:
        forward = module.forward

        def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            cut = self._cut(path)
            if cut is None or not _fits(cut, args):
                return original(*args, **kwargs)
            try:
                return _in_blocks(cut, forward, args, kwargs)
            except Exception as error:  # noqa: BLE001  (then it is called as it would have been)
                self._leave(path, error)
            return original(*args, **kwargs)

        return call

    def _cut(self, path: str) -> SampleBlocks | None:
        current = self._context.calls.current()
        return None if current is None else self._cuts.get((path, current.microbatch))

    def _leave(self, path: str, error: Exception) -> None:
        if path not in self._left:
            self._left.add(path)
            self._context.notes.append(f"{path} was not run in blocks of samples: {error}")


def _fits(cut: SampleBlocks, args: Sequence[Any]) -> bool:
    x = args[0] if args else None
    return isinstance(x, torch.Tensor) and x.dim() > cut.dim and x.shape[cut.dim] == cut.length


def _in_blocks(
    cut: SampleBlocks, forward: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    x, *others = args
    results = [forward(_taken(x, cut.dim, runs), *others, **kwargs) for runs in cut.blocks]
    order = [index for runs in cut.blocks for run in runs for index in run.indices]
    back = None
    if order != sorted(order):
        back = torch.tensor(order, device=x.device).argsort()
    parts = [[tensor for _, tensor in leaves(result)] for result in results]
    joined = iter([_joined(each, cut, back) for each in zip(*parts, strict=True)])
    return map_leaves(results[0], lambda *_: next(joined))


def _taken(x: torch.Tensor, dim: int, runs: Runs) -> torch.Tensor:
    parts = [x.narrow(dim, run.start or 0, run.length) for run in runs]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _joined(
    parts: Sequence[torch.Tensor], cut: SampleBlocks, back: torch.Tensor | None
) -> torch.Tensor:
    """What has no samples, as a bias that is handed on, is that of the first block."""
    sizes = [sum(run.length for run in runs) for runs in cut.blocks]
    if [part.shape[cut.dim] if part.dim() > cut.dim else None for part in parts] != sizes:
        return parts[0]
    whole = torch.cat(list(parts), cut.dim)
    return whole if back is None else whole.index_select(cut.dim, back)
