"""Models of Hugging Face's transformers, built from a configuration: nothing is downloaded.

Enters: a case. Leaves: their own modules, with dropout off. Without the package there are none.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from torch import Tensor, nn

from zoo.clean.architecture import (
    CLASSES,
    VOCAB,
    Architecture,
    cross_entropy,
    images,
    side,
    tokens,
)
from zoo.clean.case import Case
from zoo.clean.language import masked_tokens, pairs_of_texts
from zoo.clean.parts import head_of

_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class Logits(nn.Module):
    """The model's logits alone; `takes` names its inputs, and the rest of ours is left out."""

    def __init__(self, model: nn.Module, *takes: str) -> None:
        super().__init__()
        self.model, self.takes = model, takes

    def forward(self, *inputs: Tensor) -> Tensor:
        named = dict(zip(self.takes, inputs, strict=False))
        logits: Tensor = self.model(**named, return_dict=True).logits
        return logits


def gpt2(case: Case) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=case.positions,
        n_embd=case.width,
        n_layer=case.depth,
        n_head=_heads(case),
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    )
    return Logits(GPT2LMHeadModel(config), "input_ids")


def llama(case: Case) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=case.width,
        intermediate_size=2 * case.width,
        num_hidden_layers=case.depth,
        num_attention_heads=_heads(case),
        num_key_value_heads=_heads(case) // 2,
        max_position_embeddings=case.positions,
        use_cache=False,
    )
    return Logits(LlamaForCausalLM(config), "input_ids", "position_ids")


def bert(case: Case) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=VOCAB, max_position_embeddings=case.positions, **_encoder(case), **_NO_DROPOUT
    )
    return Logits(BertForMaskedLM(config), "input_ids")


def t5(case: Case) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCAB,
        d_model=case.width,
        d_kv=head_of(case.width),
        d_ff=4 * case.width,
        num_layers=case.depth,
        num_heads=_heads(case),
        dropout_rate=0.0,
        use_cache=False,
    )
    return Logits(T5ForConditionalGeneration(config), "input_ids", "decoder_input_ids")


def vit(case: Case) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=side(case),
        patch_size=4,
        num_labels=CLASSES,
        **_encoder(case),
        **_NO_DROPOUT,
    )
    return Logits(ViTForImageClassification(config), "pixel_values")


def _encoder(case: Case) -> dict[str, Any]:
    return {
        "hidden_size": case.width,
        "intermediate_size": 4 * case.width,
        "num_hidden_layers": case.depth,
        "num_attention_heads": _heads(case),
    }


def _heads(case: Case) -> int:
    return case.width // head_of(case.width)


def is_installed() -> bool:
    return importlib.util.find_spec("transformers") is not None


def _real(name: str, build: Any, batch: Any, *, is_image: bool = False) -> Architecture:
    return Architecture(
        name=f"hf-{name}",
        build=build,
        batch=batch,
        loss=cross_entropy,
        is_image=is_image,
        longest=4096 if is_image else 128,
    )


HUGGING_FACE = (
    _real("gpt2", gpt2, tokens),
    _real("llama", llama, tokens),
    _real("bert", bert, masked_tokens),
    _real("t5", t5, pairs_of_texts),
    _real("vit", vit, images, is_image=True),
)
