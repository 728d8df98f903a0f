"""Kernels that quantise inside, where nobody sees codes or scales: attention in float8."""

from __future__ import annotations

from typing import Any

# Fields of Megatron's TransformerConfig, which Transformer Engine's attention follows.
_IN_FLOAT8 = ("fp8_dot_product_attention", "fp8_multi_head_attention")


def unseen_in_kernels(config: Any) -> list[str]:
    """What a person should know of the modules that this config makes."""
    asked = [name for name in _IN_FLOAT8 if getattr(config, name, False)]
    told = (
        f"attention quantises inside of its kernel ({', '.join(asked)}): its codes and scales are "
        "not compared, and noise is that of its inputs and outputs; compare with it off to judge it"
    )
    return [told] if asked else []
