"""Which commands start ranks elsewhere and do not wait for them."""

from __future__ import annotations

import pytest

from ttrace.capture.settings import PACKED
from ttrace.errors import UsageError
from ttrace.lab.elsewhere import require_handed_on, starts_elsewhere


@pytest.mark.parametrize(
    "command",
    [
        "sbatch job.sh",
        "/opt/slurm/bin/sbatch --parsable -p gpu job.sh --steps 3",
        "RUN=1 DATA='a b' sbatch job.sh",
        "cd jobs && sbatch job.sh",
        "cd jobs\nsbatch job.sh",
        "(sbatch job.sh) > id.txt",
        "kubectl apply -f job.yaml",
        "kubectl -n team create -f job.yaml -o name",
        "kubectl create job j --image=i --dry-run=client -o yaml | kubectl apply -f -",
        "envsubst < job.yaml | kubectl create -f -",
        "ray job submit --no-wait -- python train.py",
        ["sbatch", "job.sh"],
        ["ray", "job", "submit", "--no-wait", "--", "python", "train.py"],
    ],
)
def test_what_submits_and_returns_starts_elsewhere(command: str | list[str]) -> None:
    assert starts_elsewhere(command)


@pytest.mark.parametrize(
    "command",
    [
        "sbatch --wait job.sh",
        "sbatch -W job.sh",
        "srun python train.py",
        "torchrun train.py --launcher sbatch",
        "echo sbatch job.sh",
        "echo 'x; sbatch job.sh'",
        "kubectl get jobs",
        "kubectl create -f job.yaml --dry-run=client",
        "ray job submit -- python train.py --no-wait",
        "ray job status",
        "python 'not closed",
        "RUN=1",
        "",
        ["echo", "; sbatch job.sh"],
        [],
    ],
)
def test_what_waits_or_does_something_else_does_not(command: str | list[str]) -> None:
    assert not starts_elsewhere(command)


@pytest.mark.parametrize(
    "command",
    [
        f"sbatch --export={PACKED}= job.sh",
        f"sbatch --export={PACKED}=,HOME job.sh",
        f'env {PACKED}="" python train.py',
        f'ray job submit --runtime-env-json \'{{"env_vars": {{"{PACKED}": ""}}}}\'',
        ["sbatch", f"--export={PACKED}=", "job.sh"],
    ],
)
def test_an_emptied_variable_is_refused(command: str | list[str]) -> None:
    with pytest.raises(UsageError, match="write the command in single quotes"):
        require_handed_on("candidate", command)


@pytest.mark.parametrize(
    "command",
    [
        f"sbatch --export={PACKED} job.sh",
        f"sbatch --export=ALL,{PACKED} job.sh",
        f"sbatch --export={PACKED}=${PACKED} job.sh",
        f'env {PACKED}="${PACKED}" python train.py',
        f'ray job submit --runtime-env-json \'{{"env_vars": {{"{PACKED}": "\'${PACKED}\'"}}}}\'',
        f"sed s/{PACKED}/${PACKED}/ job.yaml | kubectl apply -f -",
        ["kubectl", "apply", "-f", "job.yaml"],
    ],
)
def test_one_that_is_handed_on_is_not(command: str | list[str]) -> None:
    require_handed_on("candidate", command)
