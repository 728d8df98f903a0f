"""torchtitan's Trainer and its llama3, traced by TTrace.

torchrun --standalone --nproc-per-node 1 examples/torchtitan/train.py              reference
torchrun --standalone --nproc-per-node 2 examples/torchtitan/train.py              FSDP2
torchrun --standalone --nproc-per-node 2 examples/torchtitan/train.py --tp 2       tensor parallel
"""

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import ttrace

if not torch.cuda.is_available():  # for tests of this example: torchtitan asks for a GPU
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    from zoo.trainers import titan_cpu

    titan_cpu.install()

from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import CommConfig, ParallelismConfig, TrainingConfig
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


class TracedTrainer(Trainer):
    """What a user of torchtitan adds."""

    def __init__(self, config):
        super().__init__(config)
        ttrace.generate_parameters(self.model_parts)  # the same start in every layout
        self.tracer = ttrace.attach(self.model_parts, self.optimizers)

    def train_step(self, data_iterator):
        with self.tracer.step():
            super().train_step(data_iterator)


class Tokens(BaseDataLoader):
    """Tokens from a seed; a part of each sample is a prompt, on which no loss is taken."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, *, dp_world_size, dp_rank, seq_len, local_batch_size, **_):
        self.shape = (dp_world_size * local_batch_size, seq_len + 1)
        self.mine = slice(dp_rank * local_batch_size, (dp_rank + 1) * local_batch_size)

    def __iter__(self):
        torch.manual_seed(1)
        while True:
            tokens = torch.randint(256, self.shape)
            positions = torch.arange(self.shape[1] - 1).repeat(len(tokens), 1)
            prompt = positions < torch.randint(30, (len(tokens), 1))
            labels = tokens[:, 1:].masked_fill(prompt, IGNORE_INDEX)[self.mine]
            yield {"input": tokens[self.mine, :-1], "positions": positions[self.mine]}, labels

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


@dataclass(kw_only=True, slots=True)
class NoTokenizer(BaseTokenizer.Config):
    """The data are tokens already."""

    def build(self, **_):
        return None


parser = argparse.ArgumentParser()
parser.add_argument("--tp", type=int, default=1)
parser.add_argument("--accumulate", type=int, default=1)
options = parser.parse_args()
data_parallel = int(os.environ["WORLD_SIZE"]) // options.tp
spec = model_registry("debugmodel")
trainer = TracedTrainer(
    Trainer.Config(
        model_spec=spec,
        loss=CrossEntropyLoss.Config(global_vocab_size=spec.model.vocab_size),
        optimizer=default_adamw(lr=1e-3),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=1),
        training=TrainingConfig(
            local_batch_size=8 // options.accumulate // data_parallel,
            global_batch_size=8,
            seq_len=32,
            steps=3,
            mixed_precision_param="float32",
            disable_cuda_graphs=True,  # a graph that is replayed calls no module
        ),
        parallelism=ParallelismConfig(
            tensor_parallel_degree=options.tp, spmd_backend="partial_dtensor"
        ),
        dataloader=Tokens.Config(),
        tokenizer=NoTokenizer(),
        metrics=MetricsProcessor.Config(log_freq=1),
        comm=CommConfig(trace_buf_size=0),
    )
)
model, losses = trainer.model_parts[0], []
trainer.metrics_processor.log = lambda step, loss, *_, **__: losses.append(loss)
trainer.train()
