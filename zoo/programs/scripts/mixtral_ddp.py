"""A small Mixtral of transformers under DistributedDataParallel."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import MixtralConfig, MixtralForCausalLM

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])

torch.manual_seed(1)
model = MixtralForCausalLM(
    MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=32,
        attention_dropout=0.0,
    )
)
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

generator = torch.Generator().manual_seed(2)
for _ in range(1):
    ids = torch.randint(64, (4, 16), generator=generator)
    mine = ids[rank * 4 // world : (rank + 1) * 4 // world]
    with tracer.step():
        loss = model(input_ids=mine, labels=mine, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
