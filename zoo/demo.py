"""The bugs of the demo: the package brings them for `ttrace demo --bug`, the zoo lists them too."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from ttrace.demo.bugs import BUGS
from ttrace.demo.train import TrainConfig, prepare_process, train
from zoo.bug import Family
from zoo.native.job import native_bug
from zoo.registry import register


def train_demo(planted: frozenset[str]) -> None:
    if dist.get_world_size() == 1:
        config, mesh = TrainConfig(microbatches=1), None
    else:
        config = TrainConfig(dp=2, tp=2, microbatches=2, bug=next(iter(planted), None))
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    prepare_process(config)
    with redirect_stdout(StringIO()):  # it writes its loss
        train(config, mesh)


register(
    *(
        native_bug(
            bug.name,
            bug.title,
            bug.origin,
            bug.blame,
            train=train_demo,
            layout="demo: FSDP2 2 x TP 2, sequence parallel",
            ranks=4,
            family=Family.DEMO,
        )
        for bug in BUGS
    )
)
