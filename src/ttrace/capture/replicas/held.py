"""What this rank holds that others may hold too, each under a name by which ranks find replicas.

Enters: an adapter. Leaves: gradients, parameters and buffers as local tensors, with their part of
the logical tensor, and their digests. What is still to be summed over ranks is no replica, and
neither is what has no elements or is no plain array in memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import xxhash

from ttrace.adapters.base import Adapter, Parameter
from ttrace.capture.annotate import annotated_layout
from ttrace.core.drift import SharedKind
from ttrace.core.ids import Kind
from ttrace.core.layout import Layout
from ttrace.measure.digest import bit_digest

_KINDS = {SharedKind.GRADIENT: Kind.MAIN_GRAD, SharedKind.PARAMETER: Kind.PARAM_AFTER}
_BITS = (1 << 64) - 1


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


class Digests:
    """Digests of what was held at the moments of one step, fetched when all are asked for."""

    def __init__(self) -> None:
        self._found: dict[ReplicaName, tuple[torch.Tensor, int]] = {}

    def add(self, held: Iterable[HeldTensor]) -> None:
        for name, tensor in held:
            self._found[name] = bit_digest(tensor), _hash_form(name, tensor)

    def fetched(self) -> dict[ReplicaName, int]:
        """By one copy from each device."""
        devices: dict[torch.device, list[ReplicaName]] = defaultdict(list)
        for name, (value, _) in self._found.items():
            devices[value.device].append(name)
        fetched: dict[ReplicaName, int] = {}
        for names in devices.values():
            values = torch.stack([self._found[name][0] for name in names]).tolist()
            fetched |= dict(zip(names, values, strict=True))
        return {name: (fetched[name] ^ form) & _BITS for name, (_, form) in self._found.items()}

    def clear(self) -> None:
        self._found.clear()


def _hash_form(name: ReplicaName, tensor: torch.Tensor) -> int:
    """The part of a parameter says its shape and dtype; a buffer may change them as it likes."""
    if name.kind is not SharedKind.BUFFER:
        return 0
    text = f"{tensor.dtype} {tuple(tensor.shape)}"
    form: int = xxhash.xxh3_64_intdigest(text.encode())
    return form
