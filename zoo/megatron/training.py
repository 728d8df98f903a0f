"""The example's Megatron training, traced, in this process or in a pool of ranks."""

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ttrace.analysis.check import check_isolated
from ttrace.analysis.isolate import write_plans
from ttrace.capture.attach import ENV_NOISE, ENV_OUT, ENV_PLANS, ENV_STEPS, ENV_TAPS
from ttrace.core.results import CheckResult
from zoo.workers import WorkerPool

# What the reference must have in common with a layout; all else says how it is spread.
MODEL_FIELDS = frozenset(
    {
        *("bf16", "experts", "groups", "layers", "microbatches", "mtp", "per_token", "steps"),
        *("untied", "z_loss"),
    }
)


def trace(
    pool: WorkerPool,
    folder: Path,
    ranks: int = 1,
    bug: str = "",
    variables: dict[str, str] | None = None,
    **layout: Any,
) -> Path:
    """One traced run in a layout, with a planted bug if one is named."""
    environment = {ENV_OUT: str(folder), ENV_STEPS: str(layout.get("steps", 1))}
    pool.run(ranks, train_rank, layout, bug, environment=environment | (variables or {}))
    return folder


def trace_reference(pool: WorkerPool, folder: Path, **layout: Any) -> tuple[Path, Path]:
    """The same training in one process, and once more with noise."""
    reference = trace(pool, folder / "reference", **layout)
    noisy = trace(pool, folder / "noisy", variables={ENV_NOISE: "1"}, **layout)
    return reference, noisy


def train_rank(fields: dict[str, Any], bug: str) -> None:
    import torch.distributed as dist

    warnings.simplefilter("ignore")  # that Transformer Engine and Apex are not installed
    from zoo.megatron.cpu import on_cpu

    with on_cpu():
        import gpt
        import train_traced
        from megatron.core import parallel_state

        layout = gpt.Layout(**fields)
        with planted(bug):
            gpt.initialise(layout)
            try:
                train_traced.train(layout)
                dist.barrier()
            finally:
                parallel_state.destroy_model_parallel()


def planted(bug: str) -> Any:
    if not bug:
        return nullcontext()
    from zoo.megatron import planted as megatron_planted  # noqa: F401  (those of the tests' own)
    from zoo.megatron import registry as megatron_bugs

    return megatron_bugs.planted(bug)


def isolate(
    pool: WorkerPool,
    folder: Path,
    candidate: Path,
    ranks: int,
    layout: dict[str, Any],
    *,
    reference: dict[str, Any],
    bug: str,
) -> CheckResult:
    """The candidate once more, every module given the reference's values."""
    tapped = trace(pool, folder / "tapped", variables={ENV_TAPS: "1"}, **reference)
    plans = folder / "plans"
    write_plans(tapped, tapped, plans / "reference")
    scales = write_plans(tapped, candidate, plans / "candidate")
    noise = {ENV_PLANS: str(plans / "reference"), ENV_NOISE: "1"}
    noisy = trace(pool, folder / "noisy", variables=noise, **reference)
    again = {ENV_PLANS: str(plans / "candidate")}
    isolated = trace(pool, folder / "isolated", ranks, bug, again, **layout)
    return check_isolated(tapped, isolated, scales=scales, perturbed=[noisy])
