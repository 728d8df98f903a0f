"""Attention in float8 is named where its config asks for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ttrace.adapters.megatron.kernels import unseen_in_kernels


@pytest.mark.parametrize("name", ["fp8_dot_product_attention", "fp8_multi_head_attention"])
def test_attention_in_float8_is_named(name: str) -> None:
    (note,) = unseen_in_kernels(SimpleNamespace(**{name: True}))
    assert name in note


def test_other_configs_have_nothing_to_tell() -> None:
    off = SimpleNamespace(fp8_dot_product_attention=False, fp8="hybrid")
    assert unseen_in_kernels(off) == unseen_in_kernels(SimpleNamespace()) == []
