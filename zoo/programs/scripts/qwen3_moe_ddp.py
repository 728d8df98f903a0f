"""A small Qwen3-MoE of transformers under DistributedDataParallel."""

from team import draw_text, start, train
from torch.nn.parallel import DistributedDataParallel
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

start()
model = Qwen3MoeForCausalLM(
    Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=32,
        moe_intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=32,
        head_dim=8,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    )
)
model = DistributedDataParallel(model)


def loss_of(ids):
    return model(input_ids=ids, labels=ids, use_cache=False).loss


train(model, draw_text(1, 64, (4, 16)), loss_of)
