"""Pairs of images and texts; the features of both towers stay sharded for the loss."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import ttrace

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(12, 8), nn.Linear(10, 8)

    def forward(self, image, text):
        return self.image(image), self.text(text)


torch.manual_seed(1)
model = Towers()
tower = ColwiseParallel(use_local_output=False)
parallelize_module(model, mesh, {"image": tower, "text": tower})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tracer = ttrace.attach(model, optimizer)

image, text, same = torch.randn(6, 12), torch.randn(6, 10), torch.tensor([1.0, -1.0]).repeat(3)
with tracer.step():
    first, second = model(image, text)
    same = distribute_tensor(same, mesh, [Replicate()])
    loss = F.cosine_embedding_loss(first, second, same)
    loss.backward()
    optimizer.step()

dist.destroy_process_group()
