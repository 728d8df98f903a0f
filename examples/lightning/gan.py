"""A GAN in Lightning with manual optimization: two optimizers that take turns.

python examples/lightning/gan.py                                       reference
torchrun --standalone --nproc-per-node 2 examples/lightning/gan.py     candidate
"""

import os

import lightning as L
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ttrace.integrations.lightning import TTraceCallback  # 1


class GAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        self.losses = []

    def training_step(self, batch, batch_idx):
        real, noise = batch
        generator_optimizer, critic_optimizer = self.optimizers()
        fake = self.generator(noise)

        critic_optimizer.zero_grad()
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        loss = binary_cross_entropy_with_logits(self.critic(real), ones)
        loss = loss + binary_cross_entropy_with_logits(self.critic(fake.detach()), zeros)
        self.manual_backward(loss)
        critic_optimizer.step()
        self.losses.append(loss.item())

        self.toggle_optimizer(generator_optimizer)
        generator_optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(self.critic(fake), ones)
        self.manual_backward(loss)
        generator_optimizer.step()
        self.untoggle_optimizer(generator_optimizer)

    def configure_optimizers(self):
        return [
            torch.optim.Adam(part.parameters(), lr=2e-4, betas=(0.5, 0.999))
            for part in (self.generator, self.critic)
        ]


rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
L.seed_everything(0)
model = GAN()
dataset = TensorDataset(torch.randn(24, 16), torch.randn(24, 8))
sampler = DistributedSampler(dataset, ranks, rank, shuffle=False)
trainer = L.Trainer(
    accelerator="cpu",
    devices=ranks,
    strategy="ddp_find_unused_parameters_true" if ranks > 1 else "auto",
    max_epochs=1,
    callbacks=[TTraceCallback()],  # 2
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, DataLoader(dataset, batch_size=8 // ranks, sampler=sampler))
losses = model.losses
