"""What is stored once, and what is not although its bytes are the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ttrace.adapters.registry import find_adapter
from ttrace.capture.recorder import Recorder
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.record import RankInfo
from ttrace.trace.writer import TraceWriter

WHOLE = Layout.full((4,))


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    writer = TraceWriter(tmp_path, RankInfo(rank=0, world_size=1, axes={}))
    return Recorder(find_adapter(nn.Linear(4, 4)), writer, 0)


@pytest.mark.parametrize(
    ("kind", "said", "takes_over"),
    [
        ("input.0", None, True),
        ("main_grad.weight", None, False),
        ("main_grad.weight", WHOLE, False),
        ("main_grad.weight", WHOLE.summed_over("tp"), True),
    ],
)
def test_only_an_activation_is_still_a_term_of_a_sum_if_nothing_is_said(
    recorder: Recorder, kind: str, said: Layout | None, takes_over: bool
) -> None:
    """A reduction that was left out changes nothing, and must not look like a term any more."""
    tensor = torch.ones(4)
    term = TensorId.parse("step0/a:reduced_grad.weight")
    recorder.value(term, tensor, layout=WHOLE.summed_over("tp"))
    sent = recorder.value(TensorId.parse(f"step0/a:{kind}"), tensor, layout=said)
    recorder.flush()
    found = None if sent is None else sent.record
    assert found is not None
    assert (found.same_as == term) == takes_over
    partial = () if found.layout is None else found.layout.partial
    assert bool(partial) == takes_over
