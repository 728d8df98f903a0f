"""Accumulation with Accelerate over a dataset that is no whole number of windows."""

from itertools import islice

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ttrace

accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=2,
    dataloader_config=DataLoaderConfiguration(split_batches=True),
)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
data = TensorDataset(torch.randn(40, 16), torch.randn(40, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8))
tracer = ttrace.attach(model, optimizer.optimizer)

batches = iter(loader)
for start in range(0, len(loader), 2):
    size = min(2, len(loader) - start)
    with tracer.step():
        for x, y in islice(batches, size):
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()

accelerator.end_training()
AcceleratorState._reset_state(reset_partial_state=True)  # as notebooks do that train again
GradientState._reset_state()
