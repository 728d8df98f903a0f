"""A variational autoencoder; the noise of every sample is drawn before the batch is divided."""

import torch
from team import generate, share, start, train
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(24, 32), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(32, 4), nn.Linear(32, 4)
        self.decode = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 24), nn.Sigmoid())

    def forward(self, x, noise):
        hidden = self.encode(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return self.decode(mean + noise * (log_variance / 2).exp()), mean, log_variance


def batches():
    random, mine = generate(), share(8)
    for _ in range(2):
        x, noise = torch.rand(8, 24, generator=random), torch.randn(8, 4, generator=random)
        yield x[mine], noise[mine]


def loss_of(x, noise):
    made, mean, log_variance = model(x, noise)
    likelihood = F.binary_cross_entropy(made, x, reduction="sum")
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    return (likelihood + divergence) / len(x)


rank, world = start()
model = DistributedDataParallel(VAE())
train(model, batches(), loss_of, torch.optim.Adam(model.parameters(), lr=1e-3))
