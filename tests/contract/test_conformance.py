"""The conformance suite finds an adapter that breaks one promise, whichever it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from ttrace.adapters.base import (
    NO_BATCH,
    Adapter,
    Aside,
    BeforeReduction,
    BoundarySpec,
    Coordinates,
    Parameter,
    ParameterPart,
    SentTokens,
)
from ttrace.adapters.conformance import Case, run_conformance
from ttrace.adapters.patching import patched
from ttrace.core.ids import Kind
from ttrace.core.layout import Layout


class Plain(Adapter):
    """Keeps every promise; those below override one answer each."""

    name = "plain"


def make_case(seed: int = 0) -> Case:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> torch.Tensor:
        loss: torch.Tensor = model(torch.ones(3, 4)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return Case(model=model, optimizers=[optimizer], step=step)


BROKEN: list[tuple[str, type[Adapter]]] = []


def breaks(says: str) -> Callable[[type[Adapter]], type[Adapter]]:
    """Say what the suite must find in an adapter."""

    def add(kind: type[Adapter]) -> type[Adapter]:
        BROKEN.append((says, kind))
        return kind

    return add


@breaks(r"nothing calls micro_batch; did you mean microbatch\?")
class MisspeltHook(Plain):
    def micro_batch(self) -> int:
        return 0


@breaks("wrap_like takes self, local, as_, where self, local, like is given")
class OtherArguments(Plain):
    def wrap_like(self, local: torch.Tensor, as_: torch.Tensor) -> torch.Tensor:
        return local


@breaks("an adapter needs a name")
class Nameless(Plain):
    name = ""


@breaks("axis tp has index 2 of 2")
class OutsideOfItsAxis(Plain):
    def coordinates(self) -> Coordinates:
        return replace(super().coordinates(), axes={"tp": (2, 2)})


@breaks("the batch has index -1 of 1")
class OutsideOfTheBatch(Plain):
    def coordinates(self) -> Coordinates:
        return replace(super().coordinates(), batch=(-1, 1))


@breaks("averaged over 0 ranks")
class AveragedOverNone(Plain):
    def coordinates(self) -> Coordinates:
        return replace(super().coordinates(), loss_parts=0)


@breaks("coordinates differ from one call to the next")
class Wandering(Plain):
    _calls = 0

    def coordinates(self) -> Coordinates:
        self._calls += 1
        return replace(super().coordinates(), axes={"tp": (self._calls % 2, 2)})


@breaks("modules differ from one call to the next")
class OtherModulesEachTime(Plain):
    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        yield "", nn.Linear(4, 4)


@breaks("the vocabulary is in 'embedding', which is no module")
class VocabularyNowhere(Plain):
    def coordinates(self) -> Coordinates:
        return replace(super().coordinates(), vocabulary=("embedding",))


@breaks(r"the loss, a number, has a layout of \[2\]")
class LossOfManyNumbers(Plain):
    def loss_layout(self) -> Layout:
        return Layout.full((2,))


@breaks("the root, of an empty path, comes first; found '0'")
class RootLast(Plain):
    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        root, *others = super().modules()
        yield from [*others, root]


@breaks("layer is the path of two modules")
class OnePathForTwo(Plain):
    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        for path, module in super().modules():
            yield ("layer" if path else ""), module


@breaks("again is a module that was listed before")
class ListedTwice(Plain):
    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        yield from super().modules()
        yield "again", self.roots[0]


@breaks("is no Conv1d, as written_class says")
class ForeignClass(Plain):
    def written_class(self, module: nn.Module) -> type:
        return nn.Conv1d


@breaks("edges of 0 are two bools")
class EdgesOfOne(Plain):
    def edges(self, module: nn.Module) -> Any:
        return True


@breaks("outside of any step is no rehearsal")
class AlwaysRehearsing(Plain):
    def is_rehearsal(self) -> bool:
        return True


@breaks("0.weight is a parameter that was listed before")
class ParameterTwice(Plain):
    def parameters(self) -> Iterator[Parameter]:
        yield from super().parameters()
        yield next(super().parameters())


@breaks("0.weight is the name of two parameters")
class OneNameForTwo(Plain):
    def parameters(self) -> Iterator[Parameter]:
        yield from (replace(each, module="0") for each in super().parameters())


@breaks("0.bias is not among the parameters")
class ParameterLeftOut(Plain):
    def parameters(self) -> Iterator[Parameter]:
        yield from (each for each in super().parameters() if each.name != "bias")


@breaks("elsewhere.weight belongs to 'elsewhere', which is no module")
class ParameterOfNoModule(Plain):
    def parameters(self) -> Iterator[Parameter]:
        for number, each in enumerate(super().parameters()):
            yield replace(each, module="" if number else "elsewhere")


@breaks("to_local of 0.weight is still in autograd")
class StillInAutograd(Plain):
    def to_local(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Layout | None]:
        return tensor, None


@breaks("to_local of 0.weight is a copy")
class LocalCopy(Plain):
    def to_local(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Layout | None]:
        return tensor.detach().clone(), None


@breaks(r"to_local of 0.weight has a layout with \[2, 4\] on this rank, the tensor is \[4, 4\]")
class LayoutOfHalf(Plain):
    def to_local(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Layout | None]:
        layout = Layout.full(tensor.shape).shard(0, 0, 2) if tensor.dim() == 2 else None
        return tensor.detach(), layout


@breaks("is a term of a sum over cp, which is no axis of the coordinates")
class SummedOverNoAxis(Plain):
    def parts(self, kind: Kind, parameter: Parameter) -> Iterator[ParameterPart]:
        for part in super().parts(kind, parameter):
            yield replace(part, layout=Layout.full(part.tensor.shape).summed_over("cp"))


@breaks("to_local of wrap_like of 0.weight is not bitwise what was wrapped")
class WrapsOtherValues(Plain):
    def wrap_like(self, local: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return local * (1 + torch.finfo(torch.float32).eps)


@breaks(r"wrap_like of 0.weight is torch.float32 of \[16\]")
class WrapsAnotherShape(Plain):
    def wrap_like(self, local: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return local.flatten()


@breaks("reduced changes a plain tensor")
class ReducesTwice(Plain):
    def reduced(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2


@breaks("the param part elsewhere of 0.weight does not begin with the parameter's name")
class PartOfAnotherName(Plain):
    def parts(self, kind: Kind, parameter: Parameter) -> Iterator[ParameterPart]:
        for part in super().parts(kind, parameter):
            yield replace(part, slot="elsewhere")


@breaks(r"output.0 of 0 has a layout with \[3, 2\] on this rank, the tensor is \[3, 4\]")
class BoundaryOfHalf(Plain):
    def boundary(
        self, module: nn.Module, kind: Kind, slot: str, tensor: torch.Tensor
    ) -> BoundarySpec:
        layout = Layout.full(tensor.shape).shard(1, 0, 2)
        return BoundarySpec(slot=slot, layout=layout)


@breaks("the samples of input.0 of the model are in dim 2 of 2")
class BatchDimBeyond(Plain):
    def boundary(
        self, module: nn.Module, kind: Kind, slot: str, tensor: torch.Tensor
    ) -> BoundarySpec:
        return BoundarySpec(slot=slot, batch_dim=tensor.dim())


@breaks(r"is recorded by dims \(0, 0\), it has 2")
class DimsTwice(Plain):
    def boundary(
        self, module: nn.Module, kind: Kind, slot: str, tensor: torch.Tensor
    ) -> BoundarySpec:
        return BoundarySpec(slot=slot, dims=(0, 0), batch_dim=NO_BATCH)


@breaks("has rows of rank 0 beyond its 3")
class RowsBeyond(Plain):
    def boundary(
        self, module: nn.Module, kind: Kind, slot: str, tensor: torch.Tensor
    ) -> BoundarySpec:
        rows = torch.arange(len(tensor)) + 1
        layout = Layout.full(tensor.shape)
        sent = SentTokens(origin=0, rows=rows, places=rows - 1, layout=layout)
        return BoundarySpec(slot=slot, rows=(sent,))


@breaks("output.0 of 0: RuntimeError: odd")
class BoundaryThatFails(Plain):
    def boundary(
        self, module: nn.Module, kind: Kind, slot: str, tensor: torch.Tensor
    ) -> BoundarySpec:
        raise RuntimeError("odd")


@breaks(r"tracking does not put torch\.nn\.modules\.linear\.Linear\.forward back as it was")
class LeavesItsPatch(Plain):
    @contextmanager
    def tracking(self) -> Iterator[None]:
        original = nn.Linear.forward
        nn.Linear.forward = lambda module, x: original(module, x)  # type: ignore[assignment,method-assign]
        yield


@breaks(r"tracking does not put torch\.nn\.modules\.linear\.Linear\.forward back as it was")
class LeavesItsPatchAfterAnException(Plain):
    @contextmanager
    def tracking(self) -> Iterator[None]:
        original = nn.Linear.forward
        nn.Linear.forward = lambda module, x: original(module, x)  # type: ignore[assignment,method-assign]
        yield
        nn.Linear.forward = original  # type: ignore[method-assign]


@breaks(r"watch_reduction does not put torch\.nn\.modules\.activation\.Tanh\.__call__ back")
class LeavesAnInheritedName(Plain):
    @contextmanager
    def watch_reduction(self, after: Any) -> Iterator[None]:
        original = nn.Tanh.__call__
        nn.Tanh.__call__ = original  # type: ignore[method-assign]
        yield


@breaks(r"watch_losses does not put the module '0'\._forward_hooks back as it was")
class LeavesAHook(Plain):
    @contextmanager
    def watch_losses(self, aside: Aside) -> Iterator[None]:
        dict(self.modules())["0"].register_forward_hook(lambda *_: None)
        yield


@breaks("watch_accumulation keeps an exception for itself")
class SwallowsExceptions(Plain):
    @contextmanager
    def watch_accumulation(self, before: BeforeReduction) -> Iterator[None]:
        with suppress(Exception):
            yield


@breaks("watch_accumulation gives a parameter that is not listed")
class WatchesOtherParameters(Plain):
    def watch_accumulation(self, before: BeforeReduction) -> AbstractContextManager[None]:
        def forward(original: Any, *args: Any) -> Any:
            before([nn.Parameter(torch.ones(1))])
            return original(*args)

        return patched(nn.Linear, "forward", forward)


@breaks(r"the loss balance has a layout with \[2\] on this rank")
class LossThatDoesNotFit(Plain):
    def watch_losses(self, aside: Aside) -> AbstractContextManager[None]:
        def forward(original: Any, *args: Any) -> Any:
            aside("balance", torch.ones(()), Layout.full((2,)))
            return original(*args)

        return patched(nn.Linear, "forward", forward)


@breaks(r"the loss is another number when the step is watched")
class ChangesTheLoss(Plain):
    def tracking(self) -> AbstractContextManager[None]:
        return patched(nn.Tanh, "forward", lambda original, *args: original(*args) * 1.0001)


@breaks(r"the gradient of 2.bias is another number when the step is watched")
class ChangesAGradient(Plain):
    def tracking(self) -> AbstractContextManager[None]:
        def forward(original: Any, *args: Any) -> torch.Tensor:
            found: torch.Tensor = original(*args)
            found.register_hook(lambda grad: grad * 1.0001)
            return found

        return patched(nn.Linear, "forward", forward)


@breaks("optimizers gives str, which is not torch's")
class GivesNoOptimizer(Plain):
    def optimizers(self, given: Any) -> Any:
        super().optimizers(given)
        return ["adam"]


@breaks("no module that the adapter lists was called")
class ListsOtherModules(Plain):
    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        yield "", nn.Linear(4, 4)


def test_the_one_that_overrides_nothing_keeps_every_promise() -> None:
    run_conformance(Plain, make_case)


@pytest.mark.parametrize(("says", "kind"), BROKEN, ids=[kind.__name__ for _, kind in BROKEN])
def test_a_broken_promise_is_named(says: str, kind: type[Adapter]) -> None:
    before = nn.Linear.forward, vars(nn.Tanh).get("__call__")
    try:
        with pytest.raises(AssertionError) as error:
            run_conformance(kind, make_case)
    finally:
        nn.Linear.forward = before[0]  # type: ignore[method-assign]
        if before[1] is None and "__call__" in vars(nn.Tanh):
            del nn.Tanh.__call__
    assert str(error.value).startswith(f"{kind.__name__} breaks ")
    assert re.search(says, str(error.value)), error.value


def test_something_that_is_no_adapter_is_refused() -> None:
    with pytest.raises(AssertionError, match="object does not derive from"):
        run_conformance(lambda _: object(), make_case)  # type: ignore[arg-type,return-value]


def test_a_case_that_is_not_repeatable_is_not_blamed_on_the_adapter() -> None:
    seeds = iter(range(10))
    with pytest.raises(AssertionError, match="make_case must fix the seed"):
        run_conformance(Plain, lambda: make_case(next(seeds)))
