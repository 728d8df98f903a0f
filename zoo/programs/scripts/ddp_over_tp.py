"""Two ways at once: linear layers are split over one dim of a mesh, the batch over the other."""

from team import draw, start, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, world = start()
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
replica, replicas = 0, 1
if world > 1:
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    replica, replicas = mesh["dp"].get_local_rank(), world // 2
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    _pre_dp_module_transform(model)
    model = DistributedDataParallel(model, process_group=mesh["dp"].get_group())


def loss_of(x, y):
    return F.mse_loss(model(x.chunk(replicas)[replica]), y.chunk(replicas)[replica])


train(model, draw(2, (8, 16), (8, 4)), loss_of)
