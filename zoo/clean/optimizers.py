"""Optimizers by name, with the settings that their papers or torch propose."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from zoo.clean.words import OptimizerName

MAX_NORM = 0.1  # chosen below the norms of most cases, so that clipping is active


def optimizers_of(name: OptimizerName, model: nn.Module) -> list[Optimizer]:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # torch's multi-tensor kernels refuse a list with tensors of both kinds
    mixed = len({isinstance(parameter, DTensor) for parameter in parameters}) > 1
    foreach = False if mixed else None
    match name:
        case "sgd":
            return [torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=foreach)]
        case "adam":
            return [torch.optim.Adam(parameters, lr=1e-3, foreach=foreach)]
        case "adamw" | "adamw-clip":
            return [torch.optim.AdamW(parameters, lr=1e-3, foreach=foreach)]
        case "adafactor":
            return [torch.optim.Adafactor(parameters, lr=1e-2, foreach=False)]
        case "rmsprop":
            return [torch.optim.RMSprop(parameters, lr=1e-3, foreach=foreach)]
        case "muon":
            matrices = [parameter for parameter in parameters if parameter.ndim == 2]
            rest = [parameter for parameter in parameters if parameter.ndim != 2]
            # convolutions have no matrices, and some models have nothing else
            found: list[Optimizer] = [torch.optim.Muon(matrices, lr=1e-2)] if matrices else []
            return found + ([torch.optim.AdamW(rest, lr=1e-3, foreach=foreach)] if rest else [])
