"""DDP whose optimizer states are divided among ranks."""

import torch
from team import draw_share, make_mlp, start, train
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

start()
model = DistributedDataParallel(make_mlp())
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
batches = draw_share(2, (8, 16), (8, 4))
train(model, batches, lambda x, y: F.mse_loss(model(x), y), optimizer)
