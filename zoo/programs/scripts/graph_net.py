"""A graph network: the nodes of several graphs stand one after the other, edges point at them."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


class Convolution(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Linear(width, 32)
        self.own = nn.Linear(width, 32)

    def forward(self, x, edges):
        source, target = edges
        messages = self.message(x[source]).relu()
        return self.own(x).index_add(0, target, messages)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Convolution(8)
        self.second = Convolution(32)
        self.head = nn.Linear(32, 1)

    def forward(self, x, edges, graph, graphs):
        x = self.second(self.first(x, edges).relu(), edges)
        return self.head(x.new_zeros(graphs, 32).index_add(0, graph, x)).squeeze(1)


def batch(graphs):
    """The graphs as one, without edges between them."""
    sizes = torch.tensor([len(x) for x, _, _ in graphs])
    starts = (sizes.cumsum(0) - sizes).tolist()
    edges = [found + start for (_, found, _), start in zip(graphs, starts, strict=True)]
    return (
        torch.cat([x for x, _, _ in graphs]),
        torch.cat(edges, dim=1),
        torch.repeat_interleave(torch.arange(len(graphs)), sizes),
        torch.stack([y for _, _, y in graphs]),
    )


torch.manual_seed(1)
model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

generator = torch.Generator().manual_seed(2)
for sizes in ([5, 7, 9, 6], [4, 8, 6, 9]):
    graphs = [
        (
            torch.randn(n, 8, generator=generator),
            torch.randint(n, (2, 3 * n), generator=generator),
            torch.randn((), generator=generator),
        )
        for n in sizes
    ]
    x, edges, graph, y = batch(graphs[rank * 4 // world : (rank + 1) * 4 // world])
    with tracer.step():
        loss = nn.functional.mse_loss(model(x, edges, graph, len(y)), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
