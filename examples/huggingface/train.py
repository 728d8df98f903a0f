"""A small Llama, trained by the Trainer of transformers on one process or on several.

$ python train.py
$ torchrun --nproc-per-node 2 train.py
"""

import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from ttrace.integrations.huggingface import TTraceCallback

world = int(os.environ.get("WORLD_SIZE", 1))

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
model = LlamaForCausalLM(config)
documents = torch.randint(64, (24, 16))
dataset = [{"input_ids": ids, "labels": ids.clone()} for ids in documents]

arguments = TrainingArguments(
    use_cpu=True,
    max_steps=3,
    per_device_train_batch_size=8 // world,
    learning_rate=1e-3,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=dataset, callbacks=[TTraceCallback()])
trainer.train()

losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
