"""Megatron-Core: a language model that reads pictures, tensor and sequence parallel.

The embedding of the text stays whole, so that pictures can take the place of some tokens in it.
"""

import os
from functools import partial

import torch
from megatron_team import gpt, make_gpt, make_layers, on_cpu, start, train

with on_cpu():
    from megatron.core.tensor_parallel import scatter_to_sequence_parallel_region
    from megatron.core.transformer.enums import ModelType
    from megatron.core.transformer.module import MegatronModule

PATCHES, PIXELS = 4, 12  # of a picture, which stands at the beginning


class PictureModel(MegatronModule):
    model_type = ModelType.encoder_or_decoder

    def __init__(self, config, block, layout):
        super().__init__(config)
        self.language_model = make_gpt(
            layout, config, block, ties=False, scatter_embedding_sequence_parallel=False
        )
        self.projection = torch.nn.Linear(PIXELS, config.hidden_size)

    def set_input_tensor(self, tensor):
        self.language_model.set_input_tensor(tensor[0] if isinstance(tensor, list) else tensor)

    def forward(self, tokens, positions, pictures, mask, labels):
        text = self.language_model.embedding(tokens, positions)
        patches = self.projection(pictures).transpose(0, 1)
        hidden = torch.cat([patches, text[PATCHES:]])
        if self.config.sequence_parallel:
            hidden = scatter_to_sequence_parallel_region(hidden)
        return self.language_model(None, None, mask, decoder_input=hidden, labels=labels)


def forward_step(layout, data, model):
    batch = next(data)
    pictures = torch.stack([torch.sin(row[0] + torch.arange(48.0)) for row in batch["tokens"]])
    causal = torch.ones(layout.length, layout.length, dtype=torch.bool).triu(1)[None, None]
    losses = model(
        batch["tokens"],
        batch["position_ids"],
        pictures.view(-1, PATCHES, PIXELS),
        causal,
        batch["labels"],
    )
    batch["loss_mask"][:, :PATCHES] = 0
    return losses, partial(gpt.loss_of, layout, batch["loss_mask"])


with on_cpu():
    world = int(os.environ["WORLD_SIZE"])
    layout, config = start(tp=world, sp=world > 1)
    model = PictureModel(config, make_layers(config), layout)
    train(layout, config, model, partial(forward_step, layout))
