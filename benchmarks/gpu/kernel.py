"""How fast the kernel of fingerprints reads, beside a plain sum of the same tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from ttrace.measure.cells import View, choose_cells

SHAPES = (
    ((8192, 2048), torch.bfloat16),
    ((8192, 8192), torch.bfloat16),
    ((8192, 2048), torch.float32),
    ((8192, 8192), torch.float32),
)
_TENSORS = 6  # chosen: more than the cache of a GPU holds
_TIMES = 20


class Bandwidth(NamedTuple):
    """In bytes a second; launches do not count, both run as a CUDA graph."""

    name: str
    plain_sum: float
    fingerprint: float


def bandwidths() -> Iterator[Bandwidth]:
    from ttrace.measure import fingerprint_triton as kernels

    for shape, dtype in SHAPES:
        tensors = [torch.randn(shape, device="cuda").to(dtype) for _ in range(_TENSORS)]
        view = View.of(shape, choose_cells(shape, dtype.itemsize))
        sums = torch.zeros(4 * view.cells, device="cuda")
        programs = kernels.programs_of(view, dtype, is_one_of_many=False)
        totals = torch.zeros(kernels.TOTALS_BYTES * programs, dtype=torch.uint8, device="cuda")

        def sketch(
            tensor: torch.Tensor,
            view: View = view,
            sums: torch.Tensor = sums,
            totals: torch.Tensor = totals,
        ) -> None:
            places = (sums.data_ptr(), totals.data_ptr())
            kernels.sketch(tensor.device, tensor.data_ptr(), tensor.dtype, view, *places)

        def add(tensor: torch.Tensor) -> None:
            torch.sum(tensor, dtype=torch.float32)

        size_bytes = _TENSORS * tensors[0].nbytes
        found = [size_bytes / _seconds(each, tensors) for each in (add, sketch)]
        name = f"{' x '.join(map(str, shape))} {str(dtype).removeprefix('torch.')}"
        yield Bandwidth(name, *found)


def _seconds(work: Callable[[torch.Tensor], None], tensors: list[torch.Tensor]) -> float:
    work(tensors[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for tensor in tensors:
            work(tensor)
    graph.replay()
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(_TIMES):
        graph.replay()
    stop.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(stop)) / 1e3 / _TIMES
