"""The job scripts of the example, and commands of TTrace, with a real Slurm of two nodes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from tests.support import tiny_train
from tests.support.invoking import invoke, strict_json
from tests.support.slurm_cluster import Cluster
from ttrace.capture.settings import PACKED
from ttrace.trace.reader import Trace

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "04_slurm"
TRAIN = ROOT / "examples" / "01_data_parallel" / "train.py"
TINY = ROOT / "tests" / "support" / "tiny_train.py"
CANCEL = "head -n 1 | xargs scancel"
# Both ranks begin; the second dies before its step.
DIES = """
import os, torch, ttrace
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
model = nn.Linear(2, 2)
tracer = ttrace.attach(model)
if os.environ["RANK"] == "1":
    os._exit(3)
with tracer.step():
    model(torch.ones(1, 2)).sum().backward()
"""


def script(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [EXAMPLE / name, *arguments],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


class TestSubmit:
    def test_of_a_correct_candidate_ends_with_the_check(self, cluster: Cluster) -> None:
        done = script("submit.sh", "out", SCRIPT=str(TRAIN))
        assert done.returncode == 0, done.stdout
        cluster.wait_until_idle(180)
        out = Path("out")
        assert (out / "check.log").read_text().startswith("EQUIVALENT: all")
        assert not (out / "tapped").exists()

    def test_of_a_wrong_one_names_the_root_cause(self, cluster: Cluster) -> None:
        done = script("submit.sh", "out", SCRIPT=f"{TRAIN} --wrong-average")
        assert done.returncode == 0, done.stdout
        cluster.wait_until_idle(240)
        result = strict_json(Path("out/root-cause.json").read_text())
        assert result["culprits"][0]["blame"]["stage"] == "gradient_reduction"


class TestCheck:
    """By Ray on both nodes."""

    @pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
    def test_of_a_wrong_candidate_says_what_one_process_says(self, cluster: Cluster) -> None:
        out = Path("out").resolve()
        sides = (out / "reference", out / "candidate", "--perturbed", out / "perturbed")
        tiny_train.record(out / "reference")
        tiny_train.record(out / "perturbed", noise_seed=1)
        tiny_train.record(out / "candidate", "--scale", "1.001")
        words = ("sbatch", "--wait", "--nodes=2", "--cpus-per-task=2", "--output=log")
        done = subprocess.run([*words, EXAMPLE / "check.sh", out], check=False)
        said = Path("log").read_text()
        assert done.returncode == 1, said
        assert "NOT EQUIVALENT" in said
        cluster.wait_until_idle(30)
        invoke("check", *sides, "--workers", 1, "--json", "alone.json").require(1)
        alone = strict_json(Path("alone.json").read_text())
        by_ray = strict_json((out / "check.json").read_text())
        assert by_ray | {"command": alone["command"]} == alone

    def test_without_ray_is_undecided(self, cluster: Cluster) -> None:
        ray = Path("programs/ray")
        ray.write_text("#!/bin/sh\necho no room for Ray >&2\nexit 1\n")
        ray.chmod(0o755)
        words = ("sbatch", "--wait", "--nodes=2", "--output=log")
        done = subprocess.run([*words, EXAMPLE / "check.sh", "out"], check=False)
        said = Path("log").read_text()
        assert done.returncode == 2, said
        assert "no room for Ray" in said


class TestDiff:
    def test_of_a_wrong_candidate_names_the_root_cause(self, cluster: Cluster) -> None:
        done = script("diff.sh", "out", SCRIPT=f"{TRAIN} --wrong-average")
        assert done.returncode == 1, done.stdout
        assert "candidate: 2 of 2 ranks have ended" in done.stdout
        result = strict_json(Path("out/result.json").read_text())
        assert result["culprits"][0]["blame"]["stage"] == "gradient_reduction"

    def test_of_a_correct_candidate_whose_command_does_not_wait(self, cluster: Cluster) -> None:
        candidate = f"sbatch --nodes=2 {EXAMPLE / 'job.sh'} {TRAIN}"
        sides = ("--reference", f"sbatch --wrap 'python {TRAIN}'", "--candidate", candidate)
        invoke("diff", *sides, "--out", "out", "--timeout", 120).require(0, "EQUIVALENT")
        assert "Submitted batch job" in Path("out/candidate/output.log").read_text()


class TestRun:
    """Of one command, with its words after --."""

    def test_by_srun_is_one_like_any_other(self, cluster: Cluster) -> None:
        command = ("srun", "--nodes=1", "python", TRAIN)
        invoke("run", "--out", "out", "--", *command).require(0, "tensors from 1 of 1 rank")

    @pytest.mark.parametrize("export", [PACKED, "NONE"])
    def test_needs_one_variable_where_no_other_is_handed_on(
        self, cluster: Cluster, export: str
    ) -> None:
        """`NONE` alone is the companion: nothing is traced."""
        names = ("PATH", "PYTHONPATH", "OMP_NUM_THREADS")
        known = "\n".join(f'export {name}="{os.environ[name]}"' for name in names)
        job = Path("job")
        job.write_text(f"#!/bin/bash\n{known}\n. {EXAMPLE / 'job.sh'}\n")
        command = ("sbatch", "--nodes=2", "--ntasks-per-node=1", f"--export={export}", job, TRAIN)
        limits = (
            "--queue-timeout",
            25,
            "--timeout",
            60,
            "--stop",
            "grep -o '[0-9]*$' | xargs scancel",
        )
        outcome = invoke("run", *limits, "--out", "out", "--", *command)
        if export == PACKED:
            outcome.require(0, "from 2 of 2 ranks")
        else:
            outcome.require(2, "no rank of the traced run has begun within 25 s")

    def test_that_trains_on_is_cancelled_by_its_id(self, cluster: Cluster) -> None:
        long = f"python {TINY} --light --steps 100000000"
        words = ("sbatch", "--parsable", "--job-name=long", "--wrap", long)
        invoke("run", "--out", "kept", "--timeout", 60, "--", *words).require(0)
        assert cluster.jobs() == ["long"]
        cluster.ask("scancel", "--name=long")
        cluster.wait_until_idle(30)
        invoke("run", "--out", "out", "--timeout", 60, "--stop", CANCEL, "--", *words).require(0)
        cluster.wait_until_idle(10)
        assert Trace.open(Path("out")).steps == (0,)

    def test_that_waits_in_a_queue_is_said_to_do_so(self, cluster: Cluster) -> None:
        held = ("--", "sbatch", "--parsable", "--hold", "--job-name=held", "--wrap", "true")
        outcome = invoke("run", "--out", "out", "--queue-timeout", 2, *held)
        outcome.require(
            2, "no rank of the traced run has begun within 2 s", "goes on: end it there"
        )
        assert cluster.jobs() == ["held"]
        cluster.ask("scancel", "--name=held")
        invoke("run", "--out", "out2", "--queue-timeout", 2, "--stop", CANCEL, *held).require(2)
        assert cluster.jobs() == []

    def test_whose_rank_dies_is_named(self, cluster: Cluster) -> None:
        Path("dies.py").write_text(DIES)
        world = "WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=29517"
        job = f"srun sh -c 'RANK=$SLURM_PROCID {world} python dies.py'"
        words = ("sbatch", "--parsable", "--ntasks=2", "--wrap", job)
        outcome = invoke("run", "--out", "out", "--timeout", 15, "--stop", CANCEL, "--", *words)
        outcome.require(2, "1 of 2 ranks have ended: rank 1 began, recorded no step")

    def test_that_fails_is_said_at_once_where_the_command_waits(self, cluster: Cluster) -> None:
        words = ("sbatch", "--parsable", "--wait", "--wrap", "exit 7")
        outcome = invoke("run", "--out", "out", "--stop", CANCEL, "--", *words)
        outcome.require(2, "the traced command ended with exit code 7")

    def test_that_cannot_be_submitted_is_said_at_once(self, cluster: Cluster) -> None:
        words = ("sbatch", "--partition=none", "--wrap", "true")
        outcome = invoke("run", "--out", "out", "--", *words)
        outcome.require(2, "ended with exit code 1", "invalid partition specified: none")
