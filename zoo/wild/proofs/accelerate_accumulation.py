"""Accelerate divides the loss of a last, shorter accumulation window by the full window."""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Linear(1, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
loader = DataLoader(torch.ones(3, 1), batch_size=1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

updates = []
before = model.weight.item()
for x in loader:  # windows of two batches and of one
    with accelerator.accumulate(model):
        accelerator.backward(model(x).mean())
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        updates.append(round(before - model.weight.item(), 6))
        before = model.weight.item()
print(f"updates by windows of two batches and of one: {updates}, right [1.0, 1.0]")
sys.exit(int(updates == [1.0, 1.0]))
