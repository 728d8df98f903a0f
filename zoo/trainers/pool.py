"""The pool in which trainers run: a process a run, as they keep much in global variables."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from typing import Any

import torch

from ttrace.lab.functions import WorkerPool
from zoo.trainers import titan_cpu
from zoo.workers import worker_pool

# Imported before processes are forked: each takes seconds.
FRAMEWORKS = ("transformers", "accelerate", "peft", "lightning", "deepspeed", "torchtitan")


def trainers_pool(frameworks: tuple[str, ...] = FRAMEWORKS) -> WorkerPool:
    """A process for every run, forked from one that has imported those of these that there are."""
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    # Said before they are imported: no GPU is looked for, and nothing is compiled or fetched.
    os.environ |= {"DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "0"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other people's
        for name in frameworks:
            if name == "torchtitan":
                _install_titan()
            elif importlib.util.find_spec(name):
                importlib.import_module(name)
    if "deepspeed.ops" in sys.modules:  # it would compile one to send tensors in shared memory
        ops: Any = sys.modules["deepspeed.ops"]
        ops.__compatible_ops__ = {**ops.__compatible_ops__, "deepspeed_shm_comm": False}
    return worker_pool(2, fresh=True)


def _install_titan() -> None:
    if all(map(importlib.util.find_spec, titan_cpu.NEEDS)) and not torch.cuda.is_available():
        titan_cpu.install()
