"""An encoder and a decoder, each with its optimizer; the decoder is used twice."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])

torch.manual_seed(1)
encoder = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
decoder = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 16))
encoder, decoder = DistributedDataParallel(encoder), DistributedDataParallel(decoder)
encoder_optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
decoder_optimizer = torch.optim.SGD(decoder.parameters(), lr=1e-2)
models = {"encoder": encoder, "decoder": decoder}
tracer = ttrace.attach(models, [encoder_optimizer, decoder_optimizer])

generator = torch.Generator().manual_seed(2)
for _ in range(2):
    x, z = torch.randn(8, 16, generator=generator), torch.randn(8, 8, generator=generator)
    mine = slice(rank, None, world)
    with tracer.step():
        code = encoder(x[mine])
        loss = F.mse_loss(decoder(code), x[mine]) + 0.1 * code.square().mean()
        loss.backward()
        regularisation = 0.1 * decoder(z[mine]).square().mean()
        regularisation.backward()
        encoder_optimizer.step()
        decoder_optimizer.step()
        encoder_optimizer.zero_grad()
        decoder_optimizer.zero_grad()

dist.destroy_process_group()
