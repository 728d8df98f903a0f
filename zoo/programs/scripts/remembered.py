"""Blocks that tell their first linear what it will be given; it refuses any other tensor."""

from team import draw_share, start, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Remembering(nn.Linear):
    def forward(self, x):
        assert x is self.expected, "this is not the tensor that the block announced"
        return super().forward(x)


class Block(nn.Module):
    def __init__(self, dim, scale):
        super().__init__()
        self.scale = scale
        self.up, self.down = Remembering(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        self.up.expected = x
        hidden = self.up(x)
        return x + self.scale * self.down(hidden.relu())


class Model(nn.Module):
    def __init__(self, scales):
        super().__init__()
        self.blocks = nn.ModuleList(Block(16, scale) for scale in scales)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


rank, world = start()
model = DistributedDataParallel(Model([0.5, 0.25, 0.125]))
batches = draw_share(1, (8, 16), (8, 4))
train(model, batches, lambda x, y: nn.functional.mse_loss(model(x), y))
