"""A small Mixtral of transformers under DistributedDataParallel."""

from team import draw_text, start, train
from torch.nn.parallel import DistributedDataParallel
from transformers import MixtralConfig, MixtralForCausalLM

start()
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


def loss_of(ids):
    return model(input_ids=ids, labels=ids, use_cache=False).loss


train(model, draw_text(1, 64, (4, 16)), loss_of)
