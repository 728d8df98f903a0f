"""A small language model in Lightning, traced by TTrace in two lines.

python examples/lightning/train.py                                       reference
torchrun --standalone --nproc-per-node 2 examples/lightning/train.py     candidate
"""

import os

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ttrace.integrations.lightning import TTraceCallback  # 1


class LanguageModel(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 64)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.2)
        self.losses = []

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))

    def training_step(self, batch, batch_idx):
        (tokens,) = batch
        logits = self(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
L.seed_everything(0)
model = LanguageModel()
dataset = TensorDataset(torch.randint(64, (24, 17)))
# Lightning's own sampler shuffles where there are several ranks, and only there.
sampler = DistributedSampler(dataset, ranks, rank, shuffle=False)
data = DataLoader(dataset, batch_size=8 // ranks, sampler=sampler)
trainer = L.Trainer(
    accelerator="cpu",
    devices=ranks,
    strategy="ddp" if ranks > 1 else "auto",
    max_epochs=1,
    callbacks=[TTraceCallback()],  # 2
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, data)
losses = model.losses
