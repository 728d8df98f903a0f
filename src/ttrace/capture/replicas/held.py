"""What this rank holds that others may hold too, each under a name by which ranks find replicas.

Enters: an adapter. Leaves: gradients, parameters and buffers as local tensors, with their part of
the logical tensor. What is still to be summed over ranks is no replica, and neither is what has no
elements or is no plain array in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from ttrace.adapters.base import Adapter, Parameter
from ttrace.capture.annotate import annotated_layout
from ttrace.core.drift import SharedKind
from ttrace.core.ids import Kind
from ttrace.core.layout import Layout

_KINDS = {SharedKind.GRADIENT: Kind.MAIN_GRAD, SharedKind.PARAMETER: Kind.PARAM_AFTER}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaName:
    """Which tensor, and which part of it; `scope`: among which ranks that makes replicas.

    An empty scope: the framework does not say, and ranks may hold parts that look alike.
    """

    kind: SharedKind
    module: str
    name: str
    box: str = ""
    scope: tuple[int, ...] = ()


HeldTensor = tuple[ReplicaName, torch.Tensor]


def of_parameters(
    adapter: Adapter, kind: SharedKind, parameters: Iterable[Parameter]
) -> Iterator[HeldTensor]:
    for parameter in parameters:
        scope = adapter.replicas(parameter.module, parameter.tensor)
        for part in adapter.parts(_KINDS[kind], parameter):
            local, layout = adapter.to_local(part.tensor)
            told = annotated_layout(parameter.tensor, part.tensor) or part.layout
            layout = layout or told or Layout.full(local.shape)
            if layout.partial or not _is_plain(local):
                continue
            yield (
                ReplicaName(
                    kind=kind,
                    module=parameter.module,
                    name=part.slot,
                    box=f"{_form(local)} {layout} of {list(layout.shape)}",
                    scope=tuple(scope or ()),
                ),
                local,
            )


def of_buffers(adapter: Adapter) -> Iterator[HeldTensor]:
    for path, module in adapter.modules():
        for name, value in module.named_buffers(recurse=False):
            local, layout = adapter.to_local(value)
            if _is_plain(local) and not (layout and layout.partial):
                box = "" if layout is None else f"{layout} of {list(layout.shape)}"
                scope = tuple(adapter.replicas(path, value) or ())
                named = ReplicaName(
                    kind=SharedKind.BUFFER, module=path, name=name, box=box, scope=scope
                )
                yield named, local


def _form(local: torch.Tensor) -> str:
    return str(local.dtype).removeprefix("torch.")


def _is_plain(local: torch.Tensor) -> bool:
    is_array = local.layout is torch.strided and local.device.type != "meta"
    return is_array and not local.is_quantized and local.numel() > 0
