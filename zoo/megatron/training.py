"""The example's Megatron training, traced, in this process or in a pool of ranks."""

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ttrace.capture.settings import Settings
from ttrace.core.results import CheckResult
from ttrace.lab.experiment import Experiment
from ttrace.lab.functions import TASK_SECONDS
from ttrace.lab.local import LocalExecutor
from ttrace.lab.run import Function
from zoo.workers import WorkerPool

# What the reference must have in common with a layout; all else says how it is spread.
MODEL_FIELDS = frozenset(
    {
        *("bf16", "experts", "groups", "layers", "microbatches", "mtp", "per_token", "steps"),
        *("untied", "z_loss"),
    }
)


def trace(pool: WorkerPool, folder: Path, ranks: int = 1, bug: str = "", **layout: Any) -> Path:
    """One traced run in a layout, with a planted bug if one is named."""
    return _trace(pool, Settings(folder=folder, steps=layout.get("steps", 1)), ranks, bug, layout)


def trace_reference(
    pool: WorkerPool, folder: Path, bug: str = "", **layout: Any
) -> tuple[Path, Path]:
    """The same training in one process, and once more with noise, each with what is planted."""
    noise = Settings(folder=folder / "noisy", steps=layout.get("steps", 1), noise_seed=1)
    reference = trace(pool, folder / "reference", bug=bug, **layout)
    return reference, _trace(pool, noise, 1, bug, layout)


def _trace(
    pool: WorkerPool, settings: Settings, ranks: int, bug: str, layout: dict[str, Any]
) -> Path:
    pool.run(ranks, train_rank, layout, bug, environment=settings.to_environment())
    return settings.folder


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
    """The candidate once more, every module given the reference's values.

    A bug of the reference stands among its fields, as `trace` takes them.
    """
    fields = {name: value for name, value in reference.items() if name != "bug"}
    experiment = Experiment(
        reference=Function(train_rank, arguments=(fields, reference.get("bug", ""))),
        candidate=Function(train_rank, ranks=ranks, arguments=(layout, bug)),
        folder=folder,
        steps=layout.get("steps", 1),
        timeout_seconds=TASK_SECONDS,
        execute=LocalExecutor(pool),
    )
    return experiment.isolate(candidate=candidate)
