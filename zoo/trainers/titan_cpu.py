"""The real torchtitan on CPU with gloo: for tests and examples, where there is no GPU.

    install()               # before anything of torchtitan is imported
    from torchtitan.trainer import Trainer

torchtitan asks for a GPU when it is imported, and imports packages that only GPUs and downloaded
datasets need (triton, datasets): here the CPU answers, and empty modules stand in for them while it
is imported. Its debugmodel becomes smaller and gets its ScaledDotProductAttention, since
FlexAttention would be compiled. Gloo has no sum that scales: a factor of one is left out. No other
arithmetic is touched.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils._triton import has_triton_package

# What of torchtitan's own dependencies must be installed, beside it.
NEEDS = (
    *("torchtitan", "spmd_types", "tensorboard", "tokenizers", "torch_checkpointing"),
    *("torchdata", "tyro"),
)
_ONLY_IMPORTED = ("triton", "triton.language", "datasets", "datasets.distributed")


def install() -> None:
    """Run torchtitan on CPU until the process ends."""
    if "torchtitan.trainer" in sys.modules:
        return
    with _stand_ins(), _cpu_is_the_device():
        trainer: Any = importlib.import_module("torchtitan.trainer")
        fsdp: Any = importlib.import_module("torchtitan.distributed.fsdp")
        utils: Any = importlib.import_module("torchtitan.distributed.utils")
        llama3: Any = importlib.import_module("torchtitan.models.llama3")
    # Rank 0 waits two seconds for the others before it ends.
    trainer.time = SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda _: None)
    fsdp.disable_fsdp_gradient_division = _sum_gradients
    utils.set_pg_timeouts = lambda **_: None  # of NCCL; gloo's groups have no such setting
    llama3.llama3_configs["debugmodel"] = partial(_small_model, llama3)


def _small_model(llama3: Any, **backends: Any) -> Any:
    """What torchtitan's debugmodel is, smaller, and with attention that needs no compiler."""
    common: Any = importlib.import_module("torchtitan.models.common")
    attention: Any = importlib.import_module("torchtitan.models.common.attention")
    dim, heads, words = 64, 4, 256
    layers = llama3._build_llama3_layers(
        **backends,
        n_layers=2,
        dim=dim,
        n_heads=heads,
        n_kv_heads=heads // 2,
        hidden_dim=3 * dim,
        rope=common.ComplexRoPE.Config(
            dim=dim // heads, max_seq_len=131072, theta=500000, scaling="llama"
        ),
    )
    for layer in layers:
        layer.attention.inner_attention = attention.ScaledDotProductAttention.Config()
    return llama3.Llama3Model.Config(
        dim=dim,
        vocab_size=words,
        tok_embeddings=common.Embedding.Config(
            num_embeddings=words, embedding_dim=dim, param_init=llama3._EMBEDDING_INIT
        ),
        norm=common.RMSNorm.Config(normalized_shape=dim, param_init=llama3._NORM_INIT),
        lm_head=common.Linear.Config(
            in_features=dim, out_features=words, param_init=llama3._output_linear_init(dim)
        ),
        layers=layers,
    )


def _sum_gradients(model: nn.Module) -> None:
    """What torchtitan asks of FSDP2, a sum that is divided by one, as a plain sum."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Empty modules for packages that are not installed, gone again afterwards."""
    # Torch looks for triton once, here; what it remembers is to be the truth.
    importlib.import_module("torch._functorch.partitioners")
    has_triton_package()
    missing = [name for name in _ONLY_IMPORTED if not _is_installed(name.partition(".")[0])]
    sys.modules |= {name: _Anything(name) for name in missing}
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@contextmanager
def _cpu_is_the_device() -> Iterator[None]:
    """While open, torch says that the accelerator of this machine is its CPU."""
    with (
        patch("torch.compile", lambda function, **_: function),  # it would look for triton
        patch("torch._utils._get_available_device_type", lambda: "cpu"),
        patch("torch._utils._get_device_module", lambda _: _device_module()),
    ):
        yield


def _device_module() -> SimpleNamespace:
    """What torch.cuda answers, for the CPU."""
    return SimpleNamespace(
        current_device=torch.cpu.current_device,
        device_count=torch.cpu.device_count,
        empty_cache=lambda: None,
        get_device_name=lambda _: "CPU",
        get_device_properties=lambda _: SimpleNamespace(total_memory=1),
        memory_stats=lambda _: {},
        reset_peak_memory_stats=lambda: None,
        set_device=lambda _: None,
        synchronize=lambda: None,
    )


class _Anything(ModuleType):
    """A module in which every name is found."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)
