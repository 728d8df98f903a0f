"""All cases: single bugs, pairs planted together, and the demo's own."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ttrace.demo.bugs import BUGS, Bug
from ttrace.demo.train import TrainConfig, prepare_process, train
from zoo.native import (
    context_parallel,
    data_parallel,
    dtensor,
    experts,
    sequence_parallel,
    tensor_parallel,
)
from zoo.native.case import Case

# What a report calls the part that a demo bug spoils, where it is not the same word.
_PARTS = {"reduction": "gradient reduction", "main_grad": "main gradient", "grad_norm": "grad norm"}

SINGLE: tuple[Case, ...] = (
    *data_parallel.CASES,
    *tensor_parallel.CASES,
    *sequence_parallel.CASES,
    *context_parallel.CASES,
    *experts.CASES,
    *dtensor.CASES,
)


def find_case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def _pair(first: str, second: str) -> Case:
    """Two bugs of one family in one run."""
    one, other = (next(case for case in SINGLE if case.name == name) for name in (first, second))
    assert one.train is other.train
    return Case(
        name=f"{first}+{second}",
        title=f"{first} and {second} together",
        origin=f"{one.origin}, {other.origin}",
        layout=one.layout,
        train=one.train,
        expected=(*one.expected, *other.expected),
        bugs=one.planted | other.planted,
    )


def _train_demo(bugs: frozenset[str]) -> None:
    if dist.get_world_size() == 1:
        config, mesh = TrainConfig(microbatches=1), None
    else:
        config = TrainConfig(dp=2, tp=2, microbatches=2, bug=next(iter(bugs), None))
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    prepare_process(config)
    with redirect_stdout(StringIO()):  # it writes its loss
        train(config, mesh)


def _demo_case(bug: Bug) -> Case:
    return Case(
        name=bug.name,
        title=bug.title,
        origin=bug.origin,
        layout="demo: FSDP2 2 x TP 2, sequence parallel",
        train=_train_demo,
        expected=((bug.culprit, _PARTS.get(bug.where, bug.where)),),
        world_size=4,
    )


PAIRS: tuple[Case, ...] = (
    # a wrong weight gradient in one layer, a wrong backward in the next
    _pair("gathered-input-layout", "reduced-again"),
    # a wrong backward in one layer, a wrong forward in the next
    _pair("aux-loss-scale", "unsplit-positions"),
    # a wrong forward, and a gradient that is not reduced
    _pair("ulysses-permutation", "unsynced-norm"),
    # a wrong weight gradient, and a wrong norm
    _pair("gathered-input-layout", "whole-counted-by-each"),
)

DEMO: tuple[Case, ...] = tuple(map(_demo_case, BUGS))

CASES: tuple[Case, ...] = (*SINGLE, *PAIRS, *DEMO)
