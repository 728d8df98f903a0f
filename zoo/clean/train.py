"""The training steps of a case, on every rank of its layout; the reference is a layout of one.

Enters: a case. Leaves: a trace, where the run is traced, and the parameters and their gradients.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_

import ttrace
from zoo.clean.architecture import Architecture, Batch
from zoo.clean.by_hand import sum_shared_gradients
from zoo.clean.case import AUTOCAST, PARAMETERS, Case
from zoo.clean.layouts import LAYOUTS, unreduced
from zoo.clean.optimizers import MAX_NORM, optimizers_of
from zoo.clean.registry import find_architecture

SCALE = 2.0**10  # chosen: a power of two, which changes no rounding but that of small gradients


def train_rank(case: Case) -> None:
    """Everything one rank does."""
    _train(case)
    dist.barrier()


def train_and_tell(case: Case) -> dict[str, Tensor]:
    """The same, and what came of it: the whole of every gradient and parameter."""
    model = _train(case)
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        name = name.removeprefix("module.")
        found[f"{name} after"] = _whole(parameter)
        if parameter.grad is not None:
            found[f"{name} gradient"] = _whole(parameter.grad)
    dist.barrier()
    return found


def _train(case: Case) -> nn.Module:
    # not by its context manager, which sets what is for other devices too, and warns of it
    was_enabled = torch.backends.mkldnn.set_flags(case.mkldnn)[0]
    # as one must who compares with a CPU: recurrent layers round to TF32 otherwise
    torch.backends.cudnn.allow_tf32 = case.device == case.reference_device
    try:
        return _steps(case)
    finally:
        torch.backends.mkldnn.set_flags(was_enabled)


def _steps(case: Case) -> nn.Module:
    # the output is a view, as the warning says, but nobody changes it in place
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    architecture, layout = find_architecture(case.architecture), LAYOUTS[case.layout]
    model, batch = started(architecture, case)
    model = layout.spread(model, case.device)
    optimizers = optimizers_of(case.optimizer, model)
    scaler = torch.amp.GradScaler(
        case.device, init_scale=SCALE, enabled=case.dtype == "fp16-scaler"
    )
    tracer = ttrace.attach(model, optimizers)
    for _ in range(case.steps):
        model.zero_grad()
        with tracer.step():
            batches = layout.mine(batch)
            for part in batches:
                is_last = part is batches[-1]
                with nullcontext() if is_last else unreduced(model):
                    with _autocast(case):
                        loss = architecture.loss(model(*part.inputs), part.target)
                    scaler.scale(loss / len(batches)).backward()
            sum_shared_gradients(model)
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            if case.optimizer == "adamw-clip":
                clip_grad_norm_(model.parameters(), MAX_NORM)
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
    return model


def started(architecture: Architecture, case: Case) -> tuple[nn.Module, Batch]:
    """The same on every rank and device; drawn in fp32, whatever is computed in."""
    torch.manual_seed(case.seed)
    model, batch = architecture.build(case), architecture.batch(case)
    dtype = PARAMETERS[case.dtype]

    def placed(tensor: Tensor) -> Tensor:
        return tensor.to(case.device, dtype if tensor.is_floating_point() else None)

    return model.to(case.device, dtype).train(), batch.map(placed)


def _autocast(case: Case) -> AbstractContextManager[Any]:
    if case.dtype not in AUTOCAST:
        return nullcontext()
    return torch.autocast(case.device, AUTOCAST[case.dtype])


def _whole(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu().clone()
