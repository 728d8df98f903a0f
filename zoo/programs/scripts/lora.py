"""Fine-tuning by low-rank matrices beside frozen weights."""

import torch
from team import draw_share, start, train
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Lora(nn.Module):
    def __init__(self, linear, rank):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)

    def forward(self, x):
        return self.linear(x) + 2 * self.up(self.down(x))


start()
model = nn.Sequential(Lora(nn.Linear(16, 32), 4), nn.GELU(), Lora(nn.Linear(32, 4), 2))
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
batches = draw_share(2, (8, 16), (8, 4))
train(model, batches, lambda x, y: F.mse_loss(model(x), y), optimizer)
