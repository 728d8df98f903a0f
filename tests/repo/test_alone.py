"""TTrace works where none of the frameworks is installed that it knows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.flow

ROOT = Path(__file__).parents[2]
# Importing one of them fails as if it were not there, whatever is installed.
ALONE = """
import sys
KNOWN = {"accelerate", "deepspeed", "lightning", "megatron", "peft", "pytorch_lightning",
         "torchtitan", "transformers"}
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in KNOWN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
STEP = """
import torch, ttrace
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tracer = ttrace.attach(model, optimizer)
with tracer.step():
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print(tracer.enabled)
"""
HELP = """
sys.argv = ["ttrace", "--help"]
from ttrace.cli import main
main()
"""


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    source = os.environ | {"PYTHONPATH": str(ROOT / "src")} | environment
    return subprocess.run(
        [sys.executable, "-c", ALONE + script], env=source, capture_output=True, text=True
    )


def test_the_frameworks_are_absent_in_these_tests() -> None:
    assert "No module named 'transformers'" in run("import transformers").stderr


def test_a_step_is_traced(tmp_path: Path) -> None:
    done = run(STEP, TTRACE_OUT=str(tmp_path / "trace"))
    assert done.stdout == "True\n", done.stderr
    assert (tmp_path / "trace" / "rank-00000" / "journal.jsonl").exists()


def test_the_command_line_helps() -> None:
    done = run(HELP)
    assert done.returncode == 0, done.stderr
    assert "doctor" in done.stdout


def test_an_integration_says_what_is_missing() -> None:
    for name in ("huggingface", "lightning"):
        done = run(f"import ttrace.integrations.{name}")
        assert done.returncode == 1
        assert "No module named" in done.stderr
