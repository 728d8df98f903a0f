"""Whatever is wrong with a trace: a message, an exit code, and the traces left as they were."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from attacks.forging import Forged
from tests.support import tiny_train
from tests.support.invoking import Outcome, invoke, replay
from ttrace.capture.settings import OUT
from ttrace.core.ids import TensorId
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.trace import journal
from ttrace.trace.reader import Trace
from ttrace.trace.writer import TraceWriter

NEWER = journal.VERSION + 1
OUTPUT = "step0/second:output.0"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recorded")
    tiny_train.record(root / "good")
    tiny_train.record(root / "good-noisy", noise_seed=1)
    return root


@pytest.fixture
def good(recorded: Path, tmp_path: Path) -> Path:
    """A copy of the good trace, to be spoiled."""
    shutil.copytree(recorded / "good", tmp_path / "good")
    return tmp_path / "good"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check(reference: Path, candidate: Path, *perturbed: Path) -> Outcome:
    """`ttrace check`, which must leave the traces as they were."""
    traces = (reference, candidate, *perturbed)
    before = [contents(trace) for trace in traces]
    options = [word for path in perturbed for word in ("--perturbed", path)]
    outcome = invoke("check", reference, candidate, *options)
    assert [contents(trace) for trace in traces] == before
    return outcome


def edit_manifest(trace: Path, **changes: object) -> None:
    forged = Forged(trace / "rank-00000")
    forged.manifest |= changes
    forged.write()


def spoil(trace: Path, name: str) -> Path:
    """Flip one byte of a tensor; returns the file."""
    record = Trace.open(trace).by_id()[TensorId.parse(name)][0]
    assert record.location is not None
    file = trace / "rank-00000" / record.location.segment
    data = bytearray(file.read_bytes())
    data[record.location.offset] ^= 1
    file.write_bytes(data)
    return file


def write_trace(root: Path, summary: Summary | None = None, **tensors: torch.Tensor) -> Path:
    """A trace by hand; keys are modules, each with one output."""
    writer = TraceWriter(root, RankInfo(rank=0, world_size=1))
    for sequence, (module, tensor) in enumerate(tensors.items()):
        record = Record(
            id=TensorId.parse(f"step0/{module}:output.0"),
            rank=0,
            sequence=sequence,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
        )
        writer.write(record, tensor)
    writer.close(summary or Summary(steps=1, hooks_expected=0, hooks_fired=0))
    return root


class TestNotComparable:
    def test_different_models(self, good: Path, tmp_path: Path) -> None:
        """The root's input, output and loss have the same ids in all models."""
        other = tiny_train.record(tmp_path / "other", "--names", "wte", "head")
        outcome = check(good, other)
        words = f"no module of {good} is in {other}: first, second against head, wte"
        outcome.require(2, words, "same model?")

    def test_models_with_a_module_in_common_are_compared(self, good: Path, tmp_path: Path) -> None:
        other = tiny_train.record(tmp_path / "other", "--names", "first", "head")
        check(good, other).require(1, "NOT EQUIVALENT: second, missing")

    def test_models_of_one_module(self, tmp_path: Path) -> None:
        ours = write_trace(tmp_path / "ours", None, **{"": torch.ones(3)})
        theirs = write_trace(tmp_path / "theirs", embedding=torch.ones(3))
        check(ours, ours).require(0)
        check(ours, theirs).require(2, "only the model itself against embedding")

    def test_different_step_counts(self, good: Path, tmp_path: Path) -> None:
        longer = tiny_train.record(tmp_path / "longer", steps=2)
        outcome = check(good, longer)
        outcome.require(2, f"{good} has steps [0]", f"{longer} has [0, 1]", "--steps")
        check(longer, longer).require(0)

    def test_a_missing_rank_is_named(self, good: Path) -> None:
        edit_manifest(good, world_size=3)
        outcome = check(good, good)
        outcome.require(2, f"the reference {good} has no trace of ranks 1, 2 of 3", "share")

    def test_a_rank_that_did_not_finish_is_named(self, good: Path, tmp_path: Path) -> None:
        failed = tmp_path / "failed"
        with pytest.raises(SystemExit):
            tiny_train.record(failed, "--fail")
        outcome = check(good, failed)
        outcome.require(2, f"rank 0 of the candidate {failed} did not come to the end", "again")
        invoke("show", failed).require(0, "unfinished ranks 0")

    def test_a_perturbed_reference_without_noise(self, recorded: Path, good: Path) -> None:
        outcome = check(recorded / "good", recorded / "good", good)
        words = (f"{good} was given as a perturbed reference", "ttrace run --noise-seed N")
        outcome.require(2, *words)
        check(recorded / "good", good, recorded / "good-noisy").require(0)

    def test_a_run_with_noise_is_neither_reference_nor_candidate(self, recorded: Path) -> None:
        good, noisy = recorded / "good", recorded / "good-noisy"
        for runs, role in (((noisy, good), "reference"), ((good, noisy), "candidate")):
            outcome = check(*runs, noisy)
            outcome.require(2, f"{noisy} was given as the {role} but was recorded with noise")

    def test_a_trace_without_a_tensor(self, good: Path, tmp_path: Path) -> None:
        empty = write_trace(tmp_path / "empty")
        check(good, empty).require(2, f"the candidate {empty} holds no tensor", "tracer.step()")

    def test_what_is_no_trace(self, good: Path, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        check(good, tmp_path / "absent").require(2, "absent is missing", "ttrace run")
        check(good, tmp_path / "folder").require(2, "folder is not a trace", "rank-00000")


class TestUndecided:
    def test_a_reference_with_nan_cannot_be_trusted(self, recorded: Path, tmp_path: Path) -> None:
        nan = tiny_train.record(tmp_path / "nan", "--nan")
        noisy = tiny_train.record(tmp_path / "noisy", "--nan", noise_seed=1)
        for candidate in (recorded / "good", nan):
            outcome = check(nan, candidate, noisy)
            outcome.require(2, "UNDECIDED", OUTPUT, "the reference itself has 24 NaN or Inf here")

    def test_nan_only_in_the_candidate_is_its_fault(self, recorded: Path, tmp_path: Path) -> None:
        nan = tiny_train.record(tmp_path / "nan", "--nan")
        outcome = check(recorded / "good", nan, recorded / "good-noisy")
        outcome.require(1, "second, forward", "24 NaN or Inf, the reference has none")

    def test_a_difference_without_a_perturbed_reference(
        self, recorded: Path, tmp_path: Path
    ) -> None:
        other = tiny_train.record(tmp_path / "other", "--scale", "1.5")
        outcome = check(recorded / "good", other)
        outcome.require(2, "no perturbed reference has it", "--perturbed")
        check(recorded / "good", recorded / "good").require(0, "38 exactly equal")

    def test_nothing_compared_is_not_success(self, tmp_path: Path) -> None:
        """The one common id cannot be measured, and the rest is the candidate's alone."""
        ours = write_trace(tmp_path / "ours", common=torch.ones(3))
        theirs = write_trace(tmp_path / "theirs", common=torch.ones(3), more=torch.ones(3))
        for trace in (ours, theirs):
            forged = Forged(trace / "rank-00000")
            forged.records[0]["id"] = "step0/common:grad_output.0"
            forged.write()
        check(ours, theirs).require(2, "judged: backward", "1 pass, 1 extra")
        del forged.records[0]["at"]
        forged.records[0]["same_as"] = "step0/more:output.0"
        forged.write()
        check(ours, theirs).require(2, "UNDECIDED: nothing could be compared", "1 extra")

    def test_zero_size_tensors_pass(self, tmp_path: Path) -> None:
        runs = [tiny_train.record(tmp_path / name, "--empty") for name in ("a", "b")]
        noisy = tiny_train.record(tmp_path / "noisy", "--empty", noise_seed=1)
        check(*runs, noisy).require(0)
        invoke("show", runs[0], "step0/:param.nothing").require(0, "[0, 3]")
        invoke("export", runs[0], "step0/:param.nothing", tmp_path / "x").require(0)

    def test_a_zero_size_tensor_of_another_shape_does_not_pass(self, tmp_path: Path) -> None:
        ours = write_trace(tmp_path / "ours", a=torch.empty(0, 3), b=torch.ones(1))
        theirs = write_trace(tmp_path / "theirs", a=torch.empty(2, 3), b=torch.ones(1))
        assert check(ours, theirs).code != 0


class TestDamage:
    def test_a_flipped_byte_is_named(self, recorded: Path, good: Path) -> None:
        file = spoil(good, OUTPUT)
        words = (OUTPUT, str(file), "rank 0", "trace the run again")
        check(recorded / "good", good).require(2, *words)
        invoke("show", good, OUTPUT).require(2, *words)
        invoke("export", good, OUTPUT, good / "x.safetensors").require(2, *words)
        assert not (good / "x.safetensors").exists()

    def test_a_damaged_journal_line_is_named(self, recorded: Path, good: Path) -> None:
        file = good / "rank-00000" / "journal.jsonl"
        file.write_bytes(file.read_bytes().replace(b'"float32"', b'"float64"', 1))
        check(recorded / "good", good).require(2, f"{file}:1: the journal of rank 0 is damaged")

    def test_a_newer_format_says_to_upgrade(self, recorded: Path, good: Path) -> None:
        edit_manifest(good, version=NEWER)
        outcome = check(recorded / "good", good)
        outcome.require(2, f"version {NEWER} of the trace format", "upgrade ttrace")


class TestAskingForATensor:
    def test_an_unknown_one_of_a_known_module(self, good: Path) -> None:
        outcome = invoke("show", good, "step0/second:output.7")
        outcome.require(3, "has no tensor step0/second:output.7", "of this module it has", OUTPUT)

    def test_an_unknown_module(self, good: Path) -> None:
        invoke("show", good, "step0/third:output.0").require(3, "`ttrace show` lists its ids")

    @pytest.mark.parametrize("name", ["second", "step0/second:smell.0", "", "stepx/a:output.0"])
    def test_what_is_no_id(self, name: str, good: Path) -> None:
        words = ("is not a tensor id", "expected step<N>/<module>:<kind>.<slot>", "param_after")
        invoke("show", good, name).require(3, *words)
        invoke("export", good, name, good / "x").require(3, *words)

    def test_export_overwrites_nothing(self, good: Path, tmp_path: Path) -> None:
        kept = tmp_path / "kept"
        kept.write_text("precious")
        invoke("export", good, OUTPUT, kept).require(3, f"{kept} exists")
        assert kept.read_text() == "precious"

    def test_export_into_a_folder_that_is_not_there(self, good: Path, tmp_path: Path) -> None:
        outcome = invoke("export", good, OUTPUT, tmp_path / "no" / "x.safetensors")
        outcome.require(3, f"cannot write {tmp_path / 'no' / 'x.safetensors'}", "No such file")

    def test_an_unknown_bug(self) -> None:
        words = ("no bug is called 'gremlin'", "ttrace demo --list-bugs", "dp-scale")
        invoke("demo", "--bug", "gremlin").require(3, *words)


class TestFullDisk:
    @pytest.fixture
    def torn(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        original, left = TraceWriter.reserve, iter(range(8))

        def reserve(self: TraceWriter, *args: Any) -> Any:
            if next(left, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(TraceWriter, "reserve", reserve)
            return tiny_train.record(tmp_path / "torn")

    def test_is_not_the_candidates_fault(self, recorded: Path, torn: Path) -> None:
        outcome = check(recorded / "good", torn, recorded / "good-noisy")
        outcome.require(2, "the candidate could not be recorded whole", "No space left on device")

    def test_in_the_reference_is_not_success(self, recorded: Path, torn: Path) -> None:
        outcome = check(torn, recorded / "good", recorded / "good-noisy")
        outcome.require(2, "the reference could not be recorded whole", "No space left on device")

    @pytest.mark.flow
    def test_is_told_by_run(self, torn: Path, tmp_path: Path) -> None:
        outcome = invoke("run", "--out", tmp_path / "out", "--", "sh", "-c", replay(torn))
        outcome.require(2, "the trace is not whole", "1 fault:", "No space left on device")

    def test_what_is_missing_from_a_whole_trace_is(self, good: Path, tmp_path: Path) -> None:
        ours = write_trace(tmp_path / "ours", a=torch.ones(3), b=torch.ones(3))
        theirs = write_trace(tmp_path / "theirs", a=torch.ones(3))
        check(ours, theirs).require(1, "NOT EQUIVALENT: b, missing")
        check(theirs, ours).require(0, "1 extra")

    @pytest.mark.flow
    def test_training_goes_on_to_the_same_weights(self, recorded: Path, tmp_path: Path) -> None:
        """A real limit, so low that not one tensor is recorded, in a process of its own."""
        script = [sys.executable, str(ROOT / "tests" / "support" / "tiny_train.py"), "--light"]
        trace = tmp_path / "trace"
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), OUT: str(trace)}
        ended = subprocess.run(
            [*script, "--save", tmp_path / "traced"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4500, 4500)),
        )
        assert ended.returncode == 0, ended
        assert "recording stops here" in ended.stderr
        tiny_train.main(["--light", "--save", str(tmp_path / "plain")])
        traced, plain = (torch.load(tmp_path / name) for name in ("traced", "plain"))
        assert all(torch.equal(traced[name], plain[name]) for name in plain)
        tiny_train.main(["--light", "--steps", "2", "--save", str(tmp_path / "other")])
        other = torch.load(tmp_path / "other")
        assert not any(torch.equal(other[name], plain[name]) for name in plain)
        words = (f"the candidate {trace} holds no tensor", "File too large")
        check(recorded / "good", trace).require(2, *words)
