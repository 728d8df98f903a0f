"""The batch is one DTensor, sharded over the ranks, as is everything made from it."""

from team import draw, make_mlp, start, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_module, distribute_tensor

rank, world = start()
mesh = init_device_mesh("cpu", (world,))
model = make_mlp()
distribute_module(model, mesh)


def loss_of(x, y):
    return ((model(x) - y) ** 2).sum() / 32


batches = draw(2, (8, 16), (8, 4))
train(model, ([distribute_tensor(t, mesh, [Shard(0)]) for t in both] for both in batches), loss_of)
