"""An encoder and a decoder, each with its optimizer; the decoder is used twice."""

import torch
from team import draw, start, stop
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

rank, world = start()
encoder = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
decoder = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 16))
encoder, decoder = DistributedDataParallel(encoder), DistributedDataParallel(decoder)
encoder_optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
decoder_optimizer = torch.optim.SGD(decoder.parameters(), lr=1e-2)
models = {"encoder": encoder, "decoder": decoder}
tracer = ttrace.attach(models, [encoder_optimizer, decoder_optimizer])

mine = slice(rank, None, world)
for x, z in draw(2, (8, 16), (8, 8)):
    with tracer.step():
        code = encoder(x[mine])
        loss = F.mse_loss(decoder(code), x[mine]) + 0.1 * code.square().mean()
        loss.backward()
        regularisation = 0.1 * decoder(z[mine]).square().mean()
        regularisation.backward()
        for optimizer in (encoder_optimizer, decoder_optimizer):
            optimizer.step()
            optimizer.zero_grad()

stop()
