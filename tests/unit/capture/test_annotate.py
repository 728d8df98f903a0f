"""Annotations of parameters: their layout, and what is refused."""

import pytest
import torch
from torch import nn

import ttrace
from ttrace.capture.annotate import annotated_layout
from ttrace.core.layout import Run
from ttrace.errors import LayoutError, UsageError


def test_sections_of_a_fused_weight_are_split_each_by_itself() -> None:
    module = nn.Linear(4, 6)  # one of two ranks: queries of 8, keys and values of 2
    split = ttrace.Split(dim=0, index=1, count=2, sections=(8, 2, 2))
    ttrace.annotate(module, parameters={"weight": split})
    layout = annotated_layout(module.weight, torch.zeros(6, 4))
    assert layout is not None
    assert layout.shape == (12, 4)
    assert layout.runs[0] == (Run(4, 4), Run(9, 1), Run(11, 1))


def test_a_state_of_another_shape_has_no_layout() -> None:
    module = nn.Linear(4, 6)
    ttrace.annotate(module, parameters={"weight": ttrace.Split(dim=0, index=0, count=2)})
    assert annotated_layout(module.weight, torch.zeros(())) is None
    assert annotated_layout(module.bias, torch.zeros(6)) is None


def test_a_parameter_of_another_module_is_refused() -> None:
    split = ttrace.Split(dim=0, index=0, count=2)
    with pytest.raises(UsageError, match="has no parameter 'weight' of its own, only none"):
        ttrace.annotate(nn.Sequential(nn.Linear(4, 6)), parameters={"weight": split})


def test_sections_that_do_not_add_up_are_refused_at_once() -> None:
    split = ttrace.Split(dim=0, index=0, count=2, sections=(4, 4))
    with pytest.raises(LayoutError, match="must sum to 12"):
        ttrace.annotate(nn.Linear(4, 6), parameters={"weight": split})
