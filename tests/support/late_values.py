"""A payload whose bytes are made when the step is over."""

from __future__ import annotations

from typing import Any

import torch

from ttrace.core.record import Record
from ttrace.trace.payload import FullPayload, tensor_bytes


class Late(FullPayload):
    """Gives its bytes when the step is over; a fault is one of computing them."""

    def __init__(self, fault: Exception | None = None) -> None:
        self._fault = fault

    def encode(self, record: Record, tensor: torch.Tensor) -> Any:
        data = tensor_bytes(tensor.clone())

        def give() -> memoryview:
            if self._fault is not None:
                raise self._fault
            return data

        return record, give
