"""MegatronAdapter keeps the promises of every adapter, in layouts that use each part of it."""

import importlib.util
import warnings
from typing import Any

import pytest
import torch

from ttrace.adapters.conformance import Case, run_conformance
from ttrace.lab.functions import WorkerPool

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed"
)

SMALL = {"layers": 2, "microbatches": 2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp-sp": {"tp": 2, "sp": True},
    "pp": {"pp": 2, "deallocate": True},
    "vpp": {"pp": 2, "vpp": 2, "layers": 4},
    "cp": {"cp": 2},
    "zero1-bf16": {"zero1": True, "bf16": True, "overlap": True},
    "experts": {"ep": 2, "experts": 4, "z_loss": 0.001},
    "mtp": {"tp": 2, "mtp": 1, "per_token": True},
}


def conform(fields: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")  # that Transformer Engine and Apex are not installed
    from zoo.megatron.cpu import on_cpu

    with on_cpu():
        import gpt
        import train_traced
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        from ttrace.adapters import megatron

        layout = gpt.Layout(**fields)

        def make_case() -> Case:
            model_parallel_cuda_manual_seed(1234)
            model, _ = gpt.build(layout)
            optimizer = gpt.build_optimizer(layout, model)

            def step() -> torch.Tensor | None:
                train_traced.step(layout, 0, model, optimizer)
                return None  # the schedule keeps it; gradients are what it led to

            return Case(model=model, optimizers=[optimizer], step=step)

        gpt.initialise(layout)
        try:
            run_conformance(megatron.make, make_case)
        finally:
            parallel_state.destroy_model_parallel()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_on_two_ranks(layout: str, pool: WorkerPool) -> None:
    pool.run(2, conform, SMALL | LAYOUTS[layout])
