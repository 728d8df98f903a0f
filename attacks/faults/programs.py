"""Training programs of one process, small and real: each uses another way into the tracer.

Each runs more steps than are traced, and returns every number that its author could care about.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

import ttrace


@dataclass(slots=True)
class Outcome:
    """What a program computed, and the objects that it leaves."""

    numbers: list[Tensor | str] = field(default_factory=list)
    models: Sequence[nn.Module] = ()
    optimizers: Sequence[Optimizer] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacked:
    """A program and how it is traced; `exact`: tracing must not change a bit of it."""

    name: str
    train: Callable[[], Outcome]
    exact: bool = True
    ranks: int = 0  # of a process group; 0: there is none
    settings: dict[str, Any] = field(default_factory=dict)
    is_isolated: bool = False  # overwritten by a plan made of a tapped run
    by_threads: bool = False  # write every tensor, as is else done with large ones only


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.dropout = nn.Dropout(0.25)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return x + scale * self.down(self.dropout(torch.relu(self.up(self.norm(x)))))


class _Net(nn.Module):
    """Tied weights, running statistics, dropout, a block that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.block = _Block()
        self.batch_norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.is_checkpointed = False

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        x = self.embed(tokens)
        if self.is_checkpointed:
            x = checkpoint(self.block, x, use_reentrant=False)
            x = checkpoint(self.block, x, use_reentrant=True)
        else:
            x = self.block(self.block(x), scale=0.5)
        return {"logits": self.head(self.batch_norm(x))}


def _loss(output: dict[str, Tensor], tokens: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output["logits"], tokens)


def _start() -> tuple[_Net, Tensor]:
    torch.manual_seed(0)
    return _Net(), torch.randint(0, 16, (3, 2, 6))


def _state(model: nn.Module) -> list[Tensor | str]:
    found = [tensor.detach().clone() for tensor in model.state_dict().values()]
    return [*found, torch.get_rng_state()]


def plain() -> Outcome:
    """A step in a `with`, a second one, and one that is not traced."""
    model, batches = _start()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tracer = ttrace.attach(model, optimizer)
    done = Outcome([], [model], [optimizer])
    for tokens in batches:
        with tracer.step():
            optimizer.zero_grad()
            loss = _loss(model(tokens[0]), tokens[0])
            loss.backward()
            optimizer.step()
        done.numbers += [loss.detach(), *_state(model)]
    return done


def accumulated() -> Outcome:
    """Microbatches, losses that are named, gradients clipped by norm and by value, scaled."""
    model, batches = _start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    tracer = ttrace.attach({"net": model}, optimizer)
    done = Outcome([], [model], [optimizer])
    for tokens in batches:
        with tracer.step():
            for part in tokens:
                loss = tracer.loss(_loss(model(part), part))
                scaler.scale(loss).backward()
                done.numbers.append(loss.detach())
            scaler.unscale_(optimizer)
            done.numbers.append(clip_grad_norm_(model.parameters(), 0.5))
            clip_grad_value_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            model.zero_grad()
        done.numbers += _state(model)
    return done


def recomputed() -> Outcome:
    """Activation checkpointing of both kinds, a gradient that is asked for, a teacher."""
    model, batches = _start()
    model.is_checkpointed = True
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracer = ttrace.attach(model, optimizer)
    done = Outcome([], [model], [optimizer])
    for tokens in batches:
        with tracer.step():
            optimizer.zero_grad()
            with torch.no_grad():
                teacher = model(tokens[1])["logits"]
            output = model(tokens[0])
            loss = _loss(output, tokens[0]) + (output["logits"] - teacher).square().mean()
            hidden = torch.ones(2, 8, requires_grad=True)
            penalty = model.head(hidden).square().sum()
            (asked,) = torch.autograd.grad(penalty, hidden, create_graph=True)
            (loss + asked.square().mean()).backward()
            optimizer.step()
        done.numbers += [loss.detach(), *_state(model)]
    return done


class _Refused(Exception):
    """Of the program itself."""


class _Moody(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.is_moody = False

    def forward(self, tokens: Tensor) -> Any:
        output = self.inner(tokens)
        if self.is_moody:
            raise _Refused("not today")
        return output


def raising() -> Outcome:
    """An exception of the program's own, in a forward, which is in a closure; it is caught."""
    net, batches = _start()
    model = _Moody(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracer = ttrace.attach(model, optimizer)
    done = Outcome([], [model], [optimizer])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = _loss(model(batches[0, 0]), batches[0, 0])
        loss.backward()
        return loss

    for is_moody in (False, True, False):
        model.is_moody = is_moody
        try:
            with tracer.step():
                done.numbers.append(optimizer.step(closure).detach())
        except _Refused as error:
            done.numbers.append(repr((error, error.__cause__, error.__context__)))
        done.numbers += _state(model)
    return done


def outside() -> Outcome:
    """begin and end, the update after the step was left, with a hook of the program's own."""
    model, batches = _start()
    critic = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD(critic.parameters(), lr=0.1)
    tracer = ttrace.attach(model, optimizer)
    ttrace.attach(critic, other)
    done = Outcome([], [model, critic], [optimizer, other])
    for each in (optimizer, other):
        each.register_step_post_hook(lambda *_: done.numbers.append("updated"))
    for tokens in batches:
        tracer.begin()
        output = model(tokens[0])
        loss = _loss(output, tokens[0]) + critic(output["logits"]).mean()
        loss.backward()
        tracer.end()
        optimizer.step()
        other.step()
        model.zero_grad()
        critic.zero_grad()
        done.numbers += [loss.detach(), *_state(model)]
    return done


def copied() -> Outcome:
    """Copies of the model in the middle of a step, a method that is called as the model, LBFGS."""
    model, batches = _start()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    tracer = ttrace.attach(model, optimizer)
    call = tracer.as_call(model, model.forward)
    done = Outcome([], [model], [optimizer])
    for tokens in batches:
        with tracer.step():
            average = copy.deepcopy(model)

            def closure(tokens: Tensor = tokens) -> Tensor:
                optimizer.zero_grad()
                loss = _loss(call(tokens[0]), tokens[0])
                loss.backward()
                return loss

            done.numbers.append(optimizer.step(closure).detach())
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            loaded = torch.load(file, weights_only=False)
            done.numbers += [each(tokens[0])["logits"].detach() for each in (average, loaded)]
        done.numbers += _state(model)
    done.models = [model, average, loaded]
    return done


ALONE = (
    Attacked(name="plain", train=plain, settings={"steps": 2}),
    Attacked(name="handed", train=plain, settings={"steps": 2}, by_threads=True),
    Attacked(name="accumulated", train=accumulated),
    Attacked(name="recomputed", train=recomputed),
    Attacked(name="raising", train=raising, settings={"steps": 3}),
    Attacked(name="raising_handed", train=raising, settings={"steps": 3}, by_threads=True),
    Attacked(name="outside", train=outside),
    Attacked(name="copied", train=copied),
    Attacked(name="noisy", train=accumulated, exact=False, settings={"noise_seed": 1, "split": 2}),
    Attacked(name="skipped", train=plain, exact=False, settings={"noise_seed": 1, "skip": 1}),
    Attacked(name="tapped", train=accumulated, exact=False, settings={"tap": True}),
    Attacked(name="isolated", train=plain, exact=False, is_isolated=True),
)
