"""A Llama of transformers whose loss is a sum over tokens divided by those of all ranks."""

import torch
import torch.distributed as dist
from team import generate, share, start, stop
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM

import ttrace

rank, world = start()
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=4,
)
model = DistributedDataParallel(LlamaForCausalLM(config))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

random, mine = generate(), share(4)
for _ in range(2):
    ids = torch.randint(64, (4, 16), generator=random)
    labels = ids.clone()
    labels[0, 5:] = -100
    tokens = (labels[mine][:, 1:] != -100).sum()
    dist.all_reduce(tokens)
    with tracer.step():
        output = model(
            input_ids=ids[mine],
            labels=labels[mine],
            num_items_in_batch=tokens,
            use_cache=False,
        )
        (output.loss * world).backward()
        optimizer.step()
        optimizer.zero_grad()

stop()
