"""A training script of two linears that uses ttrace.attach, with a flag for every way to go wrong.

`record` runs it inside a test; as a script it is what `ttrace run` starts.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import ttrace
from ttrace.capture.settings import Settings
from ttrace.capture.tracer import OffTracer


class Scaled(nn.Linear):
    """A linear whose output is `scale` times too large."""

    scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class Tiny(nn.Module):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.add_module(names[0], Scaled(4, 8))
        self.add_module(names[1], Scaled(8, 4))
        self.names = names

    def forward(self, x: Tensor) -> Tensor:
        first, second = (self.get_submodule(name) for name in self.names)
        return second(first(x).tanh())


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the second linear's output")
    parser.add_argument("--names", nargs=2, default=["first", "second"], help="of the linears")
    parser.add_argument("--seed", type=int, default=0, help="of the parameters and the data")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--nan", action="store_true", help="in the second linear's output")
    parser.add_argument("--empty", action="store_true", help="with a parameter of no element")
    parser.add_argument("--fail", action="store_true", help="inside the step, exit code 3")
    parser.add_argument("--kill", action="store_true", help="by SIGKILL inside the step")
    parser.add_argument("--light", action="store_true", help="no optimizer: torch loads faster")
    parser.add_argument("--no-attach", action="store_true")
    parser.add_argument("--save", type=Path, help="write the trained weights here")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    flags = parse(arguments)
    torch.manual_seed(flags.seed)
    model: Any = Tiny(flags.names)
    x, y = torch.randn(6, 4), torch.randn(6, 4)
    second: Any = model.get_submodule(flags.names[1])
    second.scale = float("nan") if flags.nan else flags.scale
    if flags.empty:
        model.register_parameter("nothing", nn.Parameter(torch.empty(0, 3)))
    optimizer = None if flags.light else torch.optim.AdamW(model.parameters(), lr=1e-2)
    tracer = OffTracer() if flags.no_attach else ttrace.attach(model, optimizer)
    for _ in range(flags.steps):
        with tracer.step():
            model.zero_grad()
            loss = (model(x) - y).square().mean()
            if flags.empty:
                loss = loss + model.nothing.sum()
            loss.backward()
            misbehave(flags)
            update(model, optimizer)
    if flags.save:
        torch.save(model.state_dict(), flags.save)
    print(f"loss {loss.item():.4f}")


def update(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    if optimizer is not None:
        optimizer.step()
        return
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(0.1 * parameter.grad)


def misbehave(flags: argparse.Namespace) -> None:
    if flags.fail:
        print("the loader is on fire", file=sys.stderr)
        sys.exit(3)
    if flags.kill:
        os.kill(os.getpid(), signal.SIGKILL)


def record(folder: Path, *flags: str, steps: int = 1, **how: Any) -> Path:
    """The trace of a run in this process; `how` are settings of the capture."""
    settings = Settings(folder=folder, steps=steps, **how)
    with mock.patch.dict(os.environ, settings.to_environment()):
        main(["--steps", str(steps), *flags])
    return folder


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    main(sys.argv[1:])
