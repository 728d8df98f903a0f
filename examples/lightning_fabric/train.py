"""A small language model in Lightning Fabric, traced by TTrace in three lines.

python examples/lightning_fabric/train.py                                       reference
torchrun --standalone --nproc-per-node 2 examples/lightning_fabric/train.py     candidate
"""

import os

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import ttrace  # 1


class LanguageModel(nn.Module):
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

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))


ranks = int(os.environ.get("WORLD_SIZE", 1))
strategy = "ddp" if ranks > 1 else "auto"
fabric = L.Fabric(accelerator="cpu", devices=ranks, strategy=strategy)
fabric.launch()
fabric.seed_everything(0)
model = LanguageModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
dataset = TensorDataset(torch.randint(64, (24, 17)))
model, optimizer = fabric.setup(model, optimizer)
data = fabric.setup_dataloaders(DataLoader(dataset, batch_size=8 // ranks))

tracer = ttrace.attach(model, optimizer)  # 2
losses = []
for (tokens,) in data:
    with tracer.step():  # 3
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
