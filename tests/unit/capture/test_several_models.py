"""Several models in one tracer: their names, their microbatches, and a second attach."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tests.support.capturing import attach, hook_count, read, record
from ttrace.trace.progress import read_refusals


def models() -> tuple[nn.Linear, nn.Linear]:
    return nn.Linear(4, 4), nn.Linear(4, 1)


def test_models_in_a_list_go_by_their_index(tmp_path: Path) -> None:
    first, second = models()
    trace = record(tmp_path, [first, second], lambda: second(first(torch.ones(2, 4))).sum())
    assert {"0:param.weight", "1:param.weight", "0:output.0", "1:input.0"} <= trace.ids
    assert trace.trace.roots == {"0", "1"}


def test_every_model_counts_its_own_microbatches(tmp_path: Path) -> None:
    first, second = models()

    def step() -> None:
        second(torch.zeros(2, 4)).sum().backward()
        second(first(torch.ones(2, 4))).sum().backward()

    trace = record(tmp_path, {"made": first, "judged": second}, step)
    assert [r.microbatch for r in trace.records("judged:grad.weight")] == [0, 1]
    assert [r.microbatch for r in trace.records("made:grad.weight")] == [0]
    # A loss belongs to the model that backward comes to last.
    assert [r.microbatch for r in trace.records("judged:loss")] == [0]
    assert [r.microbatch for r in trace.records("made:loss")] == [0]


def test_models_that_are_attached_one_after_the_other_are_a_list(tmp_path: Path) -> None:
    first, second = models()
    tracers = [attach(tmp_path, model) for model in (first, second)]
    for tracer in tracers:
        with tracer.step():
            tracer.loss(second(first(torch.ones(2, 4))).sum()).backward()
    trace = read(tmp_path)
    assert trace.trace.roots == {"0", "1"}
    assert trace.summary.steps == 1
    assert {"0:grad.weight", "1:grad.weight", "1:loss"} <= trace.ids
    assert hook_count(first) == hook_count(second) == 0


def test_names_stay_where_some_models_have_them(tmp_path: Path) -> None:
    first, second = models()
    attach(tmp_path, {"made": first})
    with attach(tmp_path, second).step():
        second(first(torch.ones(2, 4))).sum().backward()
    assert read(tmp_path).trace.roots == {"made", "1"}


def test_after_a_step_a_further_attach_says_how_to_attach_both(tmp_path: Path) -> None:
    first, second = models()
    with attach(tmp_path, first, steps=2).step():
        first(torch.ones(2, 4)).sum().backward()
    assert not attach(tmp_path, second).enabled
    assert "call ttrace.attach once" in read_refusals(tmp_path)[0]


def test_what_is_no_model_leaves_the_first_one_attached(tmp_path: Path) -> None:
    first, _ = models()
    tracer = attach(tmp_path, first)
    assert not attach(tmp_path, "no model").enabled
    with tracer.step():
        first(torch.ones(2, 4)).sum().backward()
    assert ":grad.weight" in read(tmp_path).ids
