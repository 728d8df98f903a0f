"""Parameters in sections that are each split, and the activations that go with them."""

from typing import Any, TypeVar

import pytest
import torch
from torch import nn

from ttrace.core.ids import Kind
from ttrace.core.layout import Layout
from zoo.megatron.cpu import on_cpu

with on_cpu():
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory
    from megatron.core.models.common.embeddings.language_model_embedding import (
        LanguageModelEmbedding,
    )
    from megatron.core.ssm.gated_delta_net import GatedDeltaNet, _split_tensor_factory
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear
    from megatron.core.transformer.attention import SelfAttention

    from ttrace.adapters.megatron.activations import Activations
    from ttrace.adapters.megatron.experts import Dispatches, ExpertRows
    from ttrace.adapters.megatron.layouts import Ranks, heads_of_norms
    from ttrace.adapters.megatron.parameters import ParameterTable, sharded_layouts, used_layout

M = TypeVar("M", bound=nn.Module)

RANKS = Ranks(tp=(1, 2), cp=(0, 1), ep=(0, 1), etp=(1, 2), sequence_parallel=True)
FUSED = Layout.full((12, 3)).interleaved(0, (8, 4), 1, 2)  # 4 of 8 rows, then 2 of 4


class Told(nn.Module):
    """A model with a fused weight, of which a checkpoint has the sections by themselves."""

    def __init__(self, dim: int = 0, *, as_copies: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty((6, 3) if dim == 0 else (3, 6)))
        self._dim, self._as_copies = dim, as_copies

    def sharded_state_dict(self) -> dict[str, Any]:
        # The third of four layers, which stand in front.
        part = ShardedTensor.from_rank_offsets(
            "w", self.weight, (0, 2, 4), (self._dim + 1, 1, 2), prepend_axis_num=1
        )
        factory = _split_tensor_factory(part, [4, 2], ["query", "value"], self._dim)

        def copies(*args: Any) -> Any:
            built = factory.build_fn(*args)
            for part in built:
                part.data = part.data.clone()
            return built

        build = copies if self._as_copies else factory.build_fn
        return {"w": ShardedTensorFactory("w", part.data, build, factory.merge_fn)}


def made(kind: type[M], **attributes: Any) -> M:
    """A module of Megatron's without what it needs to be built."""
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def activations(
    *modules: tuple[str, nn.Module], parameters: dict[int, Layout | None] | None = None
) -> Activations:
    found = Activations(
        ranks=RANKS,
        roots={},
        paths={id(module): path for path, module in modules},
        parameters=parameters or {},
        experts=ExpertRows(RANKS, Dispatches(RANKS.tp, RANKS.cp), {}, {}),
        heads=heads_of_norms(modules),
    )
    found._length = 8
    return found


def layout_of(known: Activations, module: nn.Module, kind: Kind, *shape: int) -> Layout:
    boundary = known.boundary(module, kind, "0", torch.empty(shape))
    assert boundary is not None
    assert boundary.layout is not None
    return boundary.layout


@pytest.mark.parametrize("dim", [0, 1])
def test_sections_that_a_checkpoint_keeps_apart_stand_side_by_side(dim: int) -> None:
    model = Told(dim)
    layouts, problem = sharded_layouts(model)
    shape = (12, 3) if dim == 0 else (3, 12)
    assert problem == ""
    assert layouts == {
        model.weight.data_ptr(): Layout.full(shape).interleaved(dim, (8, 4), 1, 2),
    }


def test_sections_that_are_not_the_parameters_memory_tell_no_order() -> None:
    assert sharded_layouts(Told(as_copies=True)) == ({}, "")


@pytest.mark.parametrize(
    ("known", "told", "used"),
    [
        (None, None, None),
        (None, Layout.full((12, 3)), None),
        (None, FUSED, FUSED),
        (Layout.full((12, 3)).shard(0, 1, 2), FUSED, FUSED),
        (Layout.full((12, 3)).shard(0, 1, 2), None, Layout.full((12, 3)).shard(0, 1, 2)),
        # of another dim, of other sections, of another size: the class is believed
        (
            Layout.full((12, 12)).shard(1, 1, 2),
            Layout.full((12, 12)).interleaved(0, (8, 4), 1, 2),
            Layout.full((12, 12)).shard(1, 1, 2),
        ),
        (Layout.full((12, 3)).interleaved(0, (6, 6), 1, 2), FUSED, None),
        (Layout.full((24, 3)).shard(0, 1, 4), FUSED, None),
    ],
)
def test_a_checkpoint_tells_what_classes_leave_open(
    known: Layout | None, told: Layout | None, used: Layout | None
) -> None:
    assert used_layout(known, told) == (known if used is None else used)


def test_a_linear_makes_the_sections_that_its_weight_has() -> None:
    linear = made(ColumnParallelLinear, weight=nn.Parameter(torch.empty(6, 3)))
    known = activations(parameters={id(linear.weight): FUSED})
    made_of = layout_of(known, linear, Kind.OUTPUT, 8, 2, 6)
    assert made_of == Layout.full((8, 2, 12)).interleaved(2, (8, 4), 1, 2)


def test_channels_of_a_convolution_are_the_rows_of_its_weight() -> None:
    convolution = nn.Conv1d(6, 6, 3, groups=6)
    known = activations(parameters={id(convolution.weight): FUSED})
    for kind, time in ((Kind.INPUT, 8), (Kind.OUTPUT, 10)):
        expected = Layout.full((2, 12, time)).interleaved(1, (8, 4), 1, 2)
        assert layout_of(known, convolution, kind, 2, 6, time) == expected


def test_the_input_of_a_convolution_over_all_channels_is_not_laid_out_by_its_rows() -> None:
    convolution = nn.Conv1d(5, 6, 3)
    known = activations(parameters={id(convolution.weight): FUSED})
    boundary = known.boundary(convolution, Kind.INPUT, "0", torch.empty(2, 5, 8))
    assert boundary is not None
    assert (boundary.layout, boundary.batch_dim) == (None, 0)


def test_rows_of_a_norm_in_a_delta_net_are_samples_times_and_heads() -> None:
    norm = nn.RMSNorm(4)
    net = made(GatedDeltaNet, out_norm=norm, num_v_heads_local_tp=3)
    rows = layout_of(activations(("net", net)), norm, Kind.INPUT, 2 * 8 * 3, 4)
    assert rows == Layout.full((2, 8, 6, 4)).shard(2, 1, 2)


def test_an_attention_of_the_users_own_returns_its_heads_side_by_side() -> None:
    attention = nn.Identity()
    known = activations(("decoder.layers.0.self_attention.core_attention", attention))
    heads = layout_of(known, attention, Kind.OUTPUT, 8, 2, 6)
    assert heads == Layout.full((8, 2, 12)).shard(2, 1, 2)


@pytest.mark.parametrize(("scatters", "length"), [(True, 16), (False, 8)])
def test_an_embedding_scatters_the_sequence_only_if_told_to(scatters: bool, length: int) -> None:
    embedding = made(LanguageModelEmbedding, scatter_to_sequence_parallel=scatters)
    assert layout_of(activations(), embedding, Kind.OUTPUT, 8, 2, 4).shape == (length, 2, 4)


class TestGradientsThatAreSummedOverTensorParallelRanks:
    @pytest.fixture
    def model(self) -> nn.Module:
        norms = {"q_layernorm": nn.RMSNorm(4), "k_layernorm": None, "norm": nn.RMSNorm(4)}
        stack = nn.Module()
        stack.layers = nn.ModuleList([made(SelfAttention, **norms)])
        stack.final = nn.RMSNorm(4)
        model = nn.Module()
        model.stack, model.projection, model.marked = stack, nn.RMSNorm(4), nn.RMSNorm(4)
        model.marked.weight.sequence_parallel = True  # type: ignore[attr-defined]
        return model

    @pytest.mark.parametrize(
        ("name", "scattered", "whole"),
        [
            ("stack.layers.0.q_layernorm", ["tp"], ["tp"]),
            ("stack.layers.0.norm", ["tp"], []),
            ("stack.final", ["tp"], []),
            ("marked", ["tp"], []),
            ("projection", [], []),
        ],
    )
    def test_those_of_what_sees_a_part_of_the_sequence_or_of_the_heads(
        self, model: nn.Module, name: str, scattered: list[str], whole: list[str]
    ) -> None:
        for sequence_parallel, axes in ((True, scattered), (False, whole)):
            ranks = Ranks(
                tp=(1, 2), cp=(0, 1), ep=(0, 1), etp=(1, 2), sequence_parallel=sequence_parallel
            )
            table = ParameterTable([model], ranks, {}, {})
            assert table.axes_summed_last(name, "weight") == axes
