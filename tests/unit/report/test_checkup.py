"""Costs in words, and what a trace says of its own."""

import copy
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import ttrace
from tests.support import tiny_train
from tests.support.invoking import invoke
from ttrace.analysis.checkup import examine
from ttrace.capture.settings import Settings
from ttrace.core.checkup import Checkup, StatedRun, parse_stated_run, predict_run
from ttrace.errors import UsageError
from ttrace.report.checkup import cost_line, diff_costs, predictions
from ttrace.report.numbers import in_bytes
from ttrace.trace.progress import RecordingCost, cost_of

COST = RecordingCost(size_bytes=1_234_000_000, steps=1, step_seconds=0.41, hook_seconds=0.22)


def test_a_cost_is_one_sentence() -> None:
    said = "recorded 1.2 GB in 1 step of 0.41 s; hooks took 0.22 s, 54% of it"
    assert cost_line(COST) == said
    several = cost_line(replace(COST, steps=3))
    assert several.startswith("recorded 1.2 GB in 3 steps, the last of 0.41 s;")
    assert cost_line(replace(COST, step_seconds=0.0)).endswith("0% of it")


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1500, "1.5 KB"), (123_456_789, "123 MB")],
)
def test_sizes_are_read_at_a_glance(count: int, said: str) -> None:
    assert in_bytes(count) == said


def test_a_trace_says_what_it_cost(tmp_path: Path) -> None:
    trace = tiny_train.record(tmp_path / "trace", steps=2)
    cost = cost_of(trace)
    assert cost is not None
    assert cost.steps == 2
    assert cost.size_bytes == sum(f.stat().st_size for f in trace.rglob("seg-*")) > 0
    assert 0 < cost.share < 1
    invoke("show", trace).require(0)


def test_a_trace_without_an_end_does_not(tmp_path: Path) -> None:
    assert cost_of(tmp_path) is None
    journal = tiny_train.record(tmp_path / "trace") / "rank-00000" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]))
    assert cost_of(tmp_path / "trace") is None
    journal.write_bytes(b"".join(lines)[:-1] + b"}\n")
    assert cost_of(tmp_path / "trace") is None


def test_the_doctor_predicts_bytes_seconds_and_room(tmp_path: Path) -> None:
    found = examine(tiny_train.record(tmp_path / "trace"), free_bytes=10**12)
    found = replace(found, bytes_per_rank=2_000_000_000, ranks=4, seconds=9.0)
    found = replace(found, fingerprint_bytes_per_rank=3_000_000)
    assert list(predictions(found)) == [
        "full tensors: a step takes 8 GB of all ranks, and 9.00 s",
        "fingerprints (--capture auto): 12 MB of all ranks",
    ]
    found = replace(found, command_seconds=13.0)
    whole, more = diff_costs(found)
    assert whole == (
        "3 runs (reference, perturbed, candidate) take about 20 GB, or 40 MB as fingerprints, and "
        "40 s"
    )
    assert more.endswith("take as much again; 1 TB are free")
    assert list(diff_costs(replace(found, free_bytes=10**10)))[-1].endswith(
        "another disk with --out"
    )


def recorded(folder: Path, layers: int, monkeypatch: pytest.MonkeyPatch) -> Checkup:
    """The checkup of a step of so many layers, and of a head that is none of them."""
    for name, value in Settings(folder=folder).to_environment().items():
        monkeypatch.setenv(name, value)
    layer = nn.Linear(64, 64)
    body = nn.Sequential(*(copy.deepcopy(layer) for _ in range(layers)))
    model = nn.Sequential(OrderedDict(body=body, head=nn.Linear(64, 512)))
    optimizer = torch.optim.AdamW(model.parameters())
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        model(torch.ones(16, 64)).square().mean().backward()
        optimizer.step()
    return examine(folder, free_bytes=0, command_seconds=7.0)


def test_stated_layers_take_what_they_take_when_they_are_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = (recorded(tmp_path / f"{n}", n, monkeypatch) for n in (3, 12))
    cost = predict_run(small, StatedRun(ranks=64, layers=12, steps=2))
    assert (small.layers, cost.ranks, cost.layers) == (3, 64, 12)
    assert cost.bytes_per_rank == pytest.approx(2 * large.bytes_per_rank, rel=0.05)
    small_bytes = 2 * large.fingerprint_bytes_per_rank
    assert cost.fingerprint_bytes_per_rank == pytest.approx(small_bytes, rel=0.05)
    assert small.bytes_per_rank < 0.6 * large.bytes_per_rank  # so layers do count
    # The start of the command is not made longer by layers and steps, the step is.
    growth = cost.bytes_per_rank / small.bytes_per_rank
    expected = 7.0 - small.seconds + growth * small.seconds
    assert cost.seconds == pytest.approx(expected)


def test_costs_of_a_stated_run_have_one_digit(tmp_path: Path) -> None:
    found = examine(tiny_train.record(tmp_path / "trace"), free_bytes=10**12)
    found = replace(found, bytes_per_rank=23_000_000, fingerprint_bytes_per_rank=1_200_000)
    found = replace(
        found, seconds=2.0, command_seconds=9.0, layers=2, layer_bytes_per_rank=20_000_000
    )
    sizes, runs, _ = diff_costs(found, StatedRun(ranks=64, layers=80, steps=3))
    assert sizes == (
        "64 ranks, 80 layers (2 traced), 3 steps: in a run a rank records about 2 GB, or 4 MB as "
        "fingerprints"
    )
    assert "take about 500 GB, or 700 MB as fingerprints, and 10 min" in runs
    days = replace(found, command_seconds=90_000.0)
    assert next(iter(diff_costs(days))).endswith("and 3 days")


def test_layers_of_a_model_without_a_list_are_refused(tmp_path: Path) -> None:
    found = examine(tiny_train.record(tmp_path / "trace"), free_bytes=0)
    assert found.layers == 0
    with pytest.raises(UsageError, match=r"says layers=8, but no list of modules .* leave layers"):
        predict_run(found, StatedRun(layers=8))
    assert predict_run(found, StatedRun(ranks=2)).ranks == 2


@pytest.mark.parametrize(
    "fault",
    ["", "rank=4", "ranks", "ranks=0", "ranks=-1", "ranks=1e3", "ranks=4=4", "ranks=10000000",
     "ranks=\u0664", "steps=2.5"],
)  # fmt: skip
def test_what_states_no_run_is_refused_by_its_name(fault: str) -> None:
    with pytest.raises(UsageError, match="expected ranks, layers or steps") as refused:
        parse_stated_run(f"layers=2,{fault},layers=3")
    assert f"cannot use {fault!r}, 'layers=3':" in str(refused.value)
    assert parse_stated_run("layers=3, ranks=2") == StatedRun(ranks=2, layers=3, steps=1)


def test_the_predicted_bytes_of_fingerprints_are_those_that_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for payload in ("full", "fingerprint"):
        settings = Settings(folder=tmp_path / f"{payload}", payload=payload)
        for name, value in settings.to_environment().items():
            monkeypatch.setenv(name, value)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
        optimizer = torch.optim.AdamW(model.parameters())
        tracer = ttrace.attach(model, optimizer)
        with tracer.step():
            model(torch.ones(64, 64)).square().mean().backward()
            optimizer.step()
        found[payload] = examine(settings.folder, free_bytes=0)
    whole, small = found.values()
    assert small.fingerprint_bytes == small.bytes_per_rank
    # What the model is given is whole, and a fingerprint as its first layer's input, too.
    assert whole.fingerprint_bytes == pytest.approx(small.bytes_per_rank, rel=0.05)
    assert whole.bytes_per_rank > 1.5 * small.bytes_per_rank
