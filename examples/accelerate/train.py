"""A small GPT-2 in a loop with Accelerate, on one process or on several.

$ python train.py
$ torchrun --nproc-per-node 2 train.py
"""

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

import ttrace

accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=1,
    dataloader_config=DataLoaderConfiguration(split_batches=True),
)

torch.manual_seed(0)
documents = torch.randint(64, (24, 16))
config = GPT2Config(
    vocab_size=64,
    n_positions=16,
    n_embd=32,
    n_layer=2,
    n_head=4,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    resid_pdrop=0.0,
)
model = GPT2LMHeadModel(config)
loader = DataLoader(documents, batch_size=8)  # of all processes together
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
tracer = ttrace.attach(model, optimizer)

losses = []
for ids in loader:
    with tracer.step(), accelerator.accumulate(model):
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())

accelerator.end_training()
