"""Silent bugs of real training frameworks, planted in the installed megatron-core from outside.

    @bug("slapo#80", 2, Blame.of("embedding.word_embeddings", phase=Phase.FORWARD), tp=2)
    def embedding_mask(stack: ExitStack) -> None:
        ...                                         # the first line of its docstring is the title
        replace(stack, VocabParallelEmbedding, "forward", forward)

A function that plants gets a stack, which undoes it. Its name is the bug's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from ttrace.adapters.patching import patched, replaced
from ttrace.core.blame import Blame
from zoo.bug import Bug, Family
from zoo.megatron.training import alone, on_ranks
from zoo.registry import register

Plant = Callable[[ExitStack], None]


def bug(
    origin: str,
    ranks: int,
    *expected: Blame,
    in_paper: bool = False,
    twin: Plant | None = None,
    twin_in_reference: bool = False,
    mistake: str = "",
    attempts: int = 1,
    **layout: Any,
) -> Callable[[Plant], Plant]:
    """Register a function that plants a bug in a layout of the example's GPT.

    `expected` follows from what is planted, not from what a run has named. The twin is the layout
    without the bug, or with `twin` that does the same thing right, in the reference too if so
    told, or without the flag of the layout that is itself the `mistake`.
    """

    def registered(plant: Plant) -> Plant:
        right = {name: value for name, value in layout.items() if name != mistake}
        also = _name(twin)
        register(
            Bug(
                name=plant.__name__.replace("_", "-"),
                family=Family.MEGATRON,
                title=(plant.__doc__ or "").partition("\n")[0],
                origin=origin,
                layout=" ".join(f"{name}={value}" for name, value in layout.items()) or "DP2",
                expected=expected,
                reference=alone(layout, also if twin_in_reference else ""),
                candidate=on_ranks(ranks, layout, _name(plant)),
                twin=on_ranks(ranks, right, also),
                steps=layout.get("steps", 1),
                attempts=attempts,
                in_paper=in_paper,
            )
        )
        return plant

    return registered


def _name(plant: Plant | None) -> str:
    """How a plant travels to the ranks, which import Megatron in their own way."""
    return "" if plant is None else f"{plant.__module__}:{plant.__qualname__}"


def replace(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute until the stack is closed."""
    getattr(owner, name)  # a bug is planted in what is there
    stack.enter_context(replaced(owner, name, value))


def wrap(stack: ExitStack, owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a function by `around(original, *args, **kwargs)`."""
    stack.enter_context(patched(owner, name, around))


def once_built(stack: ExitStack, change: Callable[[Any, dict[str, Any]], None]) -> None:
    """Call `change(ddp, modules by canonical path)` for every model chunk when it is wrapped."""
    from megatron.core.distributed import DistributedDataParallel

    from ttrace.adapters.megatron.layouts import walk

    def init(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        change(self, dict(walk([self])))

    wrap(stack, DistributedDataParallel, "__init__", init)
