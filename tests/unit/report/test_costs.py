"""Costs in words, and what a trace says of its own."""

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
from ttrace.core.cost import RecordingCost
from ttrace.report.costs import cost_line, predictions, room
from ttrace.report.numbers import in_bytes
from ttrace.trace.cost import cost_of

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
    assert room(found) == "1 TB are free; 3 runs take 24 GB, 6 48 GB"
    assert room(replace(found, free_bytes=10**10)).endswith("choose another disk with --out")


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
