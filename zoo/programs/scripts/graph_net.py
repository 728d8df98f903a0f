"""A graph network: the nodes of several graphs stand one after the other, edges point at them."""

import torch
from team import generate, share, start, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Convolution(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message, self.own = nn.Linear(width, 32), nn.Linear(width, 32)

    def forward(self, x, edges):
        source, target = edges
        messages = self.message(x[source]).relu()
        return self.own(x).index_add(0, target, messages)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Convolution(8), Convolution(32)
        self.head = nn.Linear(32, 1)

    def forward(self, x, edges, graph, graphs):
        x = self.second(self.first(x, edges).relu(), edges)
        return self.head(x.new_zeros(graphs, 32).index_add(0, graph, x)).squeeze(1)


def draw_graph(nodes, random):
    return (
        torch.randn(nodes, 8, generator=random),
        torch.randint(nodes, (2, 3 * nodes), generator=random),
        torch.randn((), generator=random),
    )


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


def loss_of(x, edges, graph, y):
    return nn.functional.mse_loss(model(x, edges, graph, len(y)), y)


rank, world = start()
model = DistributedDataParallel(Model())
random = generate()
steps = [[draw_graph(n, random) for n in sizes] for sizes in ([5, 7, 9, 6], [4, 8, 6, 9])]
train(model, (batch(graphs[share(4)]) for graphs in steps), loss_of)
