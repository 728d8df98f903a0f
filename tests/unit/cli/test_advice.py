"""`ttrace doctor` says what of a step is seen; `ttrace skill` what an agent must know."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support import tiny_train
from tests.support.invoking import invoke
from ttrace.cli import app

pytestmark = pytest.mark.flow

SCRIPT = """
import torch, ttrace
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters())
tracer = ttrace.attach(model, optimizer)
with tracer.step():
    model(torch.ones(2, 4)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""


def doctor(script: str, *options: object) -> tuple[int, str]:
    done = invoke("doctor", *options, "--", sys.executable, "-c", script)
    return done.code, " ".join((done.out + done.err).split())


def test_a_step_that_is_seen_whole_is_ready(tmp_path: Path) -> None:
    code, said = doctor(SCRIPT, "--json", tmp_path / "found.json")
    assert code == 0
    assert "framework PyTorch on cpu" in said
    assert "optimizers AdamW" in said
    assert "reduced of 4 of 4 parameters" in said
    assert "state of 4 of 4 parameters" in said
    assert "norm the one that gradients are clipped by" in said
    assert "READY" in said
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["ready"]
    assert found["seconds"] > found["recording_seconds"] > 0
    assert found["bytes_per_rank"] > 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("model, optimizer)", "model)", "optimizers none"),
        ("    optimizer.step()", "    pass", "NOT READY: not all is seen (updates)"),
        ("attach(model,", "attach(torch.nn.Linear(4, 4),", "forward none: the model is not called"),
        ("    model(torch.ones(2, 4)).sum().backward()", "    model[0](torch.ones(2, 4))",
         "not all is seen (backward, gradients, reduced)"),
    ],
)  # fmt: skip
def test_what_is_not_seen_is_said(old: str, new: str, said: str) -> None:
    assert SCRIPT.count(old) == 1
    code, text = doctor(SCRIPT.replace(old, new))
    assert said in text
    assert code == (0 if "optimizers" in said else 2)


def test_a_stated_run_is_said_beside_the_traced_one(tmp_path: Path) -> None:
    stated = ("--scale", "ranks=8,layers=4", "--json", tmp_path / "found.json")
    code, said = doctor(SCRIPT, *stated)
    assert code == 0
    assert "diff 3 runs (reference, perturbed, candidate) take about" in said
    assert "scaled 8 ranks, 4 layers (2 traced), 1 step: in a run a rank records about" in said
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["scaled"]["bytes_per_rank"] > found["bytes_per_rank"]
    assert found["scaled"]["seconds"] > found["command_seconds"] > found["seconds"]


def test_what_states_no_run_is_refused_before_anything_runs() -> None:
    code, said = doctor("raise SystemExit(7)", "--scale", "ranks=8,width=4")
    assert code == 3
    assert "--scale cannot use 'width=4'" in said


def test_what_cannot_be_attached_is_said() -> None:
    code, said = doctor(SCRIPT.replace("attach(model,", "attach([],"))
    assert code == 2
    assert "could not be traced" in said
    assert "found list" in said


def test_the_output_of_a_run_that_failed_stays() -> None:
    code, said = doctor("print('what went wrong'); raise SystemExit(7)")
    assert code == 2
    log = re.search(r"Its output is in (\S+);", said)
    assert log is not None
    assert "what went wrong" in Path(log[1]).read_text()
    shutil.rmtree(Path(log[1]).parents[1])


def test_an_optimizer_that_is_none_is_a_note() -> None:
    code, said = doctor(SCRIPT.replace("model, optimizer)", "model, object())"))
    assert code == 0
    assert "note object is no torch.optim.Optimizer and wraps none" in said


def test_a_script_without_attach_is_told_how() -> None:
    code, said = doctor(f"import runpy; {tiny_train.__name__!r}")
    assert code == 2
    assert "ttrace.attach(model, optimizer)" in said
    assert "TTraceCallback" in said


def test_the_skill_is_printed_and_names_commands_that_there_are() -> None:
    done = invoke("skill")
    done.require(0, "name: ttrace", "ttrace.attach(model, optimizer)")
    known = {command.callback.__name__ for command in app.registered_commands if command.callback}
    said = {line.split("ttrace ")[1].split()[0] for line in done.out.splitlines()
            if line.startswith("    ttrace ")}  # fmt: skip
    assert {"doctor", "diff"} <= said <= known
