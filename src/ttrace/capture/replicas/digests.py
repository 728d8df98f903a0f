"""Digests of a step, fetched from their devices once, when all of them are asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
import xxhash

from ttrace.capture.replicas.held import HeldTensor, ReplicaName
from ttrace.core.drift import SharedKind
from ttrace.measure.digest import bit_digest

_BITS = (1 << 64) - 1


class Digests:
    """What was held at the moments of one step."""

    def __init__(self) -> None:
        self._found: dict[ReplicaName, tuple[torch.Tensor, int]] = {}

    def add(self, held: Iterable[HeldTensor]) -> None:
        for name, tensor in held:
            self._found[name] = bit_digest(tensor), _form(name, tensor)

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


def _form(name: ReplicaName, tensor: torch.Tensor) -> int:
    """The part of a parameter says its shape and dtype; a buffer may change them as it likes."""
    if name.kind is not SharedKind.BUFFER:
        return 0
    text = f"{tensor.dtype} {tuple(tensor.shape)}"
    form: int = xxhash.xxh3_64_intdigest(text.encode())
    return form
