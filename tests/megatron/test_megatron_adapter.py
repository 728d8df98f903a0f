"""What the adapter for Megatron-Core says of parameters, ranges and versions, without a run."""

import difflib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ttrace.core.ids import Kind
from ttrace.core.layout import Layout
from ttrace.errors import UsageError
from zoo.megatron.cpu import on_cpu

with on_cpu():
    from ttrace.adapters.flat import box_layout, flat_boxes
    from ttrace.adapters.megatron.activations import Activations
    from ttrace.adapters.megatron.adapter import require_version, unseen_in_kernels
    from ttrace.adapters.megatron.experts import Dispatches, ExpertRows
    from ttrace.adapters.megatron.layouts import (
        Ranks,
        parameter_layout,
        sequence_layout,
        shard_of,
        with_global_number,
    )


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    ends=st.tuples(st.integers(0, 125), st.integers(0, 125)),
)
def test_boxes_of_a_flat_range_are_the_range(shape: list[int], ends: tuple[int, int]) -> None:
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape)
    start, stop = sorted(min(end, tensor.numel()) for end in ends)

    boxes = list(flat_boxes(shape, start, stop))

    parts = [tensor[tuple(slice(*bounds) for bounds in box)] for box in boxes]
    assert [value for part in parts for value in part.flatten().tolist()] == [*range(start, stop)]
    for box, part in zip(boxes, parts, strict=True):
        assert box_layout(Layout.full(shape), box).local_shape == part.shape


def test_gate_and_up_are_two_runs() -> None:
    layout = shard_of(Layout.full((8, 3)), 0, 1, 2, sections=2)
    assert layout.shape == (16, 3)
    assert [(run.start, run.length) for run in layout.runs[0]] == [(4, 4), (12, 4)]


def test_sequence_is_cut_by_context_then_by_tensor_parallelism() -> None:
    ranks = Ranks(tp=(1, 2), cp=(0, 2), ep=(0, 1), etp=(0, 1), sequence_parallel=True)
    layout = sequence_layout((4, 2, 8), ranks, scattered=True)
    assert layout.shape == (16, 2, 8)
    # The first rank of two holds chunks 0 and 3 of four; the second half of that is chunk 3.
    assert [(run.start, run.length) for run in layout.runs[0]] == [(12, 4)]


def test_an_old_version_is_refused_with_what_is_needed() -> None:
    with pytest.raises(UsageError, match=r"megatron-core 0.9.0 is not supported.*newer"):
        require_version("0.9.0")
    require_version("0.16.1")
    with pytest.raises(UsageError, match=r"0\.15\.0 is not supported"):
        require_version("0.15.0")
    require_version("1.0.0rc1")


def test_torch_is_as_before_when_the_patches_are_gone() -> None:
    names = ("zeros", "arange", "empty_like")
    before = [getattr(torch, name) for name in names]
    with on_cpu():
        assert torch.zeros(2, device="cuda").device.type == "cpu"
        assert torch.zeros(2).type() == "torch.cuda.FloatTensor"
    assert [getattr(torch, name) for name in names] == before
    assert torch.zeros(2).type() == "torch.FloatTensor"
    assert "cuda" not in vars(torch.Tensor)


def test_the_example_is_traced_by_at_most_five_lines() -> None:
    folder = Path(__file__).parents[2] / "examples" / "megatron_gpt"
    plain, traced = (
        (folder / name).read_text().splitlines() for name in ("train.py", "train_traced.py")
    )
    added = [line for line in difflib.ndiff(plain, traced) if line.startswith("+ ")]
    assert 0 < len(added) <= 5


# Transformer Engine is known by the names of its classes alone: it cannot be installed everywhere.
class TELinear(nn.Module):
    sequence_parallel = True


class TEColumnParallelLinear(TELinear):
    pass


class TELayerNormColumnParallelLinear(nn.Module):
    sequence_parallel = True


class TERowParallelLinear(TELinear):
    pass


class TEColumnParallelGroupedLinear(nn.Module):
    pass


class TERowParallelGroupedLinear(nn.Module):
    pass


class TEDotProductAttention(nn.Module):
    pass


class FusedByTheUser(TEColumnParallelLinear):
    pass


RANKS = Ranks(tp=(1, 2), cp=(0, 1), ep=(1, 2), etp=(1, 4), sequence_parallel=True)


@pytest.mark.parametrize(
    ("kind", "name", "shape", "whole"),
    [
        (TEColumnParallelLinear, "weight", (8, 4), (16, 4)),
        (FusedByTheUser, "weight", (8, 4), (16, 4)),
        (TELayerNormColumnParallelLinear, "bias", (8,), (16,)),
        (TELayerNormColumnParallelLinear, "layer_norm_weight", (4,), None),
        (TELayerNormColumnParallelLinear, "layer_norm_bias", (4,), None),
        (TERowParallelLinear, "weight", (8, 4), (8, 8)),
        (TERowParallelLinear, "bias", (8,), None),
        (nn.Linear, "weight", (8, 4), None),
    ],
)
def test_parameters_of_transformer_engine_are_laid_out_by_class_name(
    kind: type, name: str, shape: tuple[int, ...], whole: tuple[int, ...] | None
) -> None:
    module = kind(4, 8) if kind is nn.Linear else kind()
    layout = parameter_layout(module, name, shape, RANKS, 1)
    assert (None if layout is None else layout.shape) == whole


def test_grouped_experts_are_split_over_the_experts_own_axis_and_numbered_globally() -> None:
    column, row = TEColumnParallelGroupedLinear(), TERowParallelGroupedLinear()
    gated = parameter_layout(column, "weight1", (8, 4), RANKS, 2, is_expert=True)
    assert gated is not None
    assert [(run.start, run.length) for run in gated.runs[0]] == [(4, 4), (20, 4)]
    whole = parameter_layout(row, "weight0", (4, 8), RANKS, 1, is_expert=True)
    assert whole is not None
    assert whole.shape == (4, 32)
    layer = SimpleNamespace(local_expert_indices=[2, 3])
    names = ("weight0", "bias1", "weight", "layer_norm_weight")
    assert [with_global_number(name, layer) for name in names] == [
        "weight2",
        "bias3",
        "weight",
        "layer_norm_weight",
    ]


@pytest.mark.parametrize(
    ("kind", "slot_kind", "shape", "whole"),
    [
        (TELayerNormColumnParallelLinear, Kind.INPUT, (4, 2, 8), (8, 2, 8)),
        (TELayerNormColumnParallelLinear, Kind.OUTPUT, (8, 2, 12), (8, 2, 24)),
        (TERowParallelLinear, Kind.INPUT, (8, 2, 12), (8, 2, 24)),
        (TERowParallelLinear, Kind.OUTPUT, (4, 2, 8), (8, 2, 8)),
        (TEDotProductAttention, Kind.INPUT, (8, 2, 2, 4), (8, 2, 4, 4)),
        (TEDotProductAttention, Kind.OUTPUT, (8, 2, 8), (8, 2, 16)),
    ],
)
def test_activations_of_transformer_engine_are_laid_out_by_class_name(
    kind: type, slot_kind: Kind, shape: tuple[int, ...], whole: tuple[int, ...]
) -> None:
    activations = Activations(
        ranks=RANKS,
        roots={},
        paths={},
        parameters={},
        experts=ExpertRows(RANKS, Dispatches(RANKS.tp, RANKS.cp), {}, {}),
        heads={},
    )
    boundary = activations.boundary(kind(), slot_kind, "0", torch.empty(shape))
    assert boundary is not None
    assert boundary.layout is not None
    assert boundary.layout.shape == whole
    assert boundary.layout.local_shape == shape


@pytest.mark.parametrize("name", ["fp8_dot_product_attention", "fp8_multi_head_attention"])
def test_attention_in_float8_is_named(name: str) -> None:
    (note,) = unseen_in_kernels(SimpleNamespace(**{name: True}))
    assert name in note


def test_other_configs_have_nothing_to_tell() -> None:
    off = SimpleNamespace(fp8_dot_product_attention=False, fp8="hybrid")
    assert unseen_in_kernels(off) == unseen_in_kernels(SimpleNamespace()) == []
