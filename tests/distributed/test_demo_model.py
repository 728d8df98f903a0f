"""The demo must be right without a bug, and wrong in the announced way with one.

Four gloo processes are started once and run every case; rank 0 compares each with one process that
takes the whole batch at once.
"""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import start_processes

from ttrace.core.blame import Phase, Stage
from ttrace.demo.bugs import BUGS, DemoBug, find_bug
from ttrace.demo.model import ModelConfig, build_model
from ttrace.demo.train import (
    TrainConfig,
    build,
    clip_gradients,
    forward_backward,
    main,
    microbatches,
    parse,
)

pytestmark = pytest.mark.flow

PARALLEL = TrainConfig(dp=2, tp=2, microbatches=2, layers=2)
CORRECT = {
    "fsdp, sequence parallel": PARALLEL,
    "fsdp, tied, no sequence parallel": replace(PARALLEL, tied=True, sequence_parallel=False),
    "ddp, tied": replace(PARALLEL, tied=True, data_parallel="ddp"),
}
CASES = CORRECT | {bug.name: replace(PARALLEL, bug=bug.name) for bug in BUGS}
# measured 1.2e-6 at worst over all correct layouts; the weakest bug is 1e-3
ROUNDING = 1e-5
WRONG = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How far a case is from one process: relative, except for the loss."""

    loss: float
    gradients: dict[str, float]
    clipped: dict[str, float]
    parameters: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Logical tensors of one step, by the name of the parameter."""

    loss: Tensor
    gradients: dict[str, Tensor]
    clipped: dict[str, Tensor]
    parameters: dict[str, Tensor]


def one_step(config: TrainConfig, mesh: DeviceMesh | None = None) -> Step:
    model, optimizer = build(config, mesh)
    loss = forward_backward(model, optimizer, microbatches(config, mesh, 0), config)
    if mesh is not None:
        dist.all_reduce(loss, group=mesh.get_group("dp"))
        loss /= config.dp
    named = dict(model.named_parameters())
    gradients = {name: logical(parameter.grad) for name, parameter in named.items()}
    clip_gradients(model, local=bool(config.planted and config.planted.clips_by_local_norm))
    clipped = {name: logical(parameter.grad) for name, parameter in named.items()}
    optimizer.step()
    updated = {name: logical(parameter) for name, parameter in named.items()}
    return Step(loss=loss, gradients=gradients, clipped=clipped, parameters=updated)


def logical(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().clone()


def distances(candidate: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    assert candidate.keys() == reference.keys()
    return {
        name: ((candidate[name] - reference[name]).norm() / reference[name].norm()).item()
        for name in reference
    }


def run_cases(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    rendezvous = (folder / "rendezvous").as_uri()
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    errors = {}
    for name, config in CASES.items():
        found = one_step(config, mesh)
        if rank == 0:
            expected = one_step(replace(config, dp=1, tp=1, microbatches=1, bug=None))
            errors[name] = {
                "loss": abs(found.loss - expected.loss).item(),
                "gradients": distances(found.gradients, expected.gradients),
                "clipped": distances(found.clipped, expected.clipped),
                "parameters": distances(found.parameters, expected.parameters),
            }
    if rank == 0:
        (folder / "errors.json").write_text(json.dumps(errors))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Errors]:
    folder = tmp_path_factory.mktemp("demo")
    # a fresh process: forked ranks share its imports, spawned ones would each need their own
    subprocess.run([sys.executable, __file__, str(folder)], check=True, timeout=120)
    text = (folder / "errors.json").read_text()
    return {name: Errors(**found) for name, found in json.loads(text).items()}


@pytest.mark.parametrize("name", CORRECT)
def test_four_ranks_equal_one_process_up_to_rounding(name: str, errors: dict[str, Errors]) -> None:
    found = errors[name]
    assert found.loss < ROUNDING
    assert max(found.gradients.values()) < ROUNDING
    assert max(found.clipped.values()) < ROUNDING
    assert max(found.parameters.values()) < ROUNDING


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_bug_first_shows_where_it_says(bug: DemoBug, errors: dict[str, Errors]) -> None:
    found = errors[bug.name]
    if bug.blame.phase is Phase.FORWARD:
        assert found.loss > WRONG
    else:
        assert found.loss < ROUNDING
    if bug.blame.stage is Stage.OPTIMIZER_STEP:
        assert max(found.clipped.values()) < ROUNDING
        assert max(found.parameters.values()) > WRONG
    elif bug.blame.phase is Phase.GRADIENT_NORM:
        assert max(found.gradients.values()) < ROUNDING
        assert max(found.clipped.values()) > WRONG
    else:
        assert max(found.gradients.values()) > WRONG


def test_an_unsynced_norm_gradient_spoils_that_parameter_alone(errors: dict[str, Errors]) -> None:
    gradients = errors["norm-grad-unsynced"].gradients
    wrong = {name for name, error in gradients.items() if error > ROUNDING}
    (module,) = find_bug("norm-grad-unsynced").blame.modules
    assert wrong == {f"{module}.weight"}


def test_an_unreduced_input_gradient_spares_everything_above_it(errors: dict[str, Errors]) -> None:
    gradients = errors["column-input-grad"].gradients
    wrong = {name for name, error in gradients.items() if error > ROUNDING}
    assert "layers.1.ffn_norm.weight" in wrong
    spared = ("layers.1.feed_forward.", "norm.", "output.")
    assert not {name for name in wrong if name.startswith(spared)}


def test_missing_division_by_dp_is_a_factor_of_dp(errors: dict[str, Errors]) -> None:
    # a gradient that is twice the reference is away from it by exactly its norm
    for error in errors["dp-scale"].gradients.values():
        assert error == pytest.approx(1, abs=ROUNDING)


def test_bugs_have_unique_names_and_say_where_they_come_from() -> None:
    names = [bug.name for bug in BUGS]
    assert len(set(names)) == len(names) >= 9
    paths = {name for name, _ in build_model(ModelConfig(), seed=0).named_modules()}
    for bug in BUGS:
        assert bug.title
        assert bug.origin
        assert set(bug.blame.modules) <= paths
        flags = (
            bug.zero_grad_each_microbatch,
            bug.clips_by_local_norm,
            bug.optimizer_before_parallel,
        )
        assert (bug.plant is not None) + sum(flags) == 1, bug.name


def test_an_unknown_bug_is_answered_with_the_known_names() -> None:
    with pytest.raises(KeyError, match="row-bias"):
        find_bug("no-such-bug")


def test_the_seed_alone_decides_the_parameters() -> None:
    first, again, other = (build_model(ModelConfig(), seed=seed) for seed in (3, 3, 4))
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name))
        assert not torch.equal(parameter, other.get_parameter(name))


def test_every_layout_covers_the_same_samples_in_order() -> None:
    whole = microbatches(TrainConfig(microbatches=1), None, 0)[0][0]
    split = [tokens for tokens, _ in microbatches(TrainConfig(microbatches=4), None, 0)]
    assert len(split) == 4
    assert torch.equal(torch.cat(split), whole)
    assert not torch.equal(microbatches(TrainConfig(microbatches=1), None, 1)[0][0], whole)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--bug", "dp-scale"], "needs --dp 2"),
        (["--bug", "row-bias", "--dp", "2"], "needs --tp 2"),
        (["--bug", "accumulation-overwrite", "--microbatches", "1"], "--microbatches 2"),
        (["--bug", "norm-grad-unsynced", "--tp", "2", "--no-sequence-parallel"], "sequence"),
        (["--bug", "stale-optimizer", "--dp", "2", "--data-parallel", "ddp"], "sharded"),
        (["--dp", "3"], "does not split"),
        (["--steps", "0"], "at least 1"),
    ],
)
def test_a_run_that_could_not_show_anything_is_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refusal:
        parse(arguments)
    assert refusal.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_run_of_one_process_writes_its_loss(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--layers", "1"]) == 0
    assert capsys.readouterr().out.startswith("step 0: loss ")


def test_a_failing_rank_ends_the_whole_run() -> None:
    # two kv heads do not split over four ranks: every rank raises
    command = [sys.executable, "-m", "ttrace.demo.train", "--tp", "4"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "kv heads cannot be split over tp 4" in ended.stderr


if __name__ == "__main__":
    import_module("torch._dynamo")
    start_processes(run_cases, (Path(sys.argv[1]),), nprocs=4, start_method="fork")
