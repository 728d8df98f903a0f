"""The package that docs/extending.md shows is installed as it stands there, and works."""

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from torch import nn

import ttrace
from tests.support import tiny_train
from tests.support.capturing import record
from tests.support.invoking import invoke
from tests.support.judging import ruled
from tests.support.made_results import tensor
from tests.support.pages import files_of, write_files
from ttrace.adapters.registry import find_adapter
from ttrace.analysis.diagnose import mistakes
from ttrace.analysis.diagnose.suspect import Suspect
from ttrace.analysis.engine import find_engine
from ttrace.analysis.judge import find_rules
from ttrace.core.ids import TensorId
from ttrace.core.results import CheckResult, Outcome, Verdict
from ttrace.lab.functions import WorkerPool
from ttrace.report.json_file import dumps
from ttrace.trace.payloads import forget_installed
from zoo.bug import Family
from zoo.registry import BUGS, find
from zoo.trials import Trials

PAGE = "docs/extending.md"
PACKAGES = ("acme", "planted", "test_acme", "ttrace_acme")
POINTS = tomllib.loads(files_of(PAGE)["pyproject.toml"])["project"]["entry-points"]


@pytest.fixture(autouse=True, scope="module")
def installed(pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What pip would leave of the page's package in site-packages.

    The pool, which other tests use as well, was there before.
    """
    site = tmp_path_factory.mktemp("site")
    write_files(PAGE, site)
    metadata = site / "ttrace_acme-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ttrace_acme\nVersion: 1.0\n")
    lines = [
        line
        for group, points in POINTS.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        forget()
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]
    forget()


def forget() -> None:
    """Entry points are looked up once in the life of a process."""
    forget_installed()
    mistakes.installed_guesses.cache_clear()


def test_every_entry_point_of_the_page_can_be_loaded() -> None:
    for group, points in POINTS.items():
        for name, value in points.items():
            EntryPoint(name, value, group).load()


def test_every_group_of_entry_points_is_on_the_page() -> None:
    """A group is a constant of the module that asks for it."""
    source = Path(ttrace.__file__).parent
    asked = {
        group
        for file in source.rglob("*.py")
        for group in re.findall(r'^[A-Z_]+ = "(ttrace\.[a-z_]+)"$', file.read_text(), re.MULTILINE)
    }
    assert asked == set(POINTS)


def plain(folder: Path, noise_seed: int | None = None, width: int = 4) -> Path:
    model, x = made(width)

    def step() -> None:
        model(x).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.1 * parameter.grad)

    record(folder, model, step, noise_seed=noise_seed)
    return folder


def wrapped(folder: Path) -> Path:
    model, x = made(4)
    engine = import_module("acme").Engine(model, lr=0.1)

    def step() -> None:
        engine.backward(engine(x).square().mean())
        engine.step()

    record(folder, engine, step)
    return folder


def made(width: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4)), torch.randn(
        8, width
    )


def test_a_model_of_the_framework_compares_with_the_plain_one(tmp_path: Path) -> None:
    result = ttrace.check(
        plain(tmp_path / "reference"),
        wrapped(tmp_path / "candidate"),
        perturbed=[plain(tmp_path / "perturbed", noise_seed=1)],
    )
    assert result.outcome is Outcome.EQUIVALENT, str(result)
    assert {tensor.id.kind.value for tensor in result.tensors} >= {"output", "grad", "main_grad"}
    assert not [tensor for tensor in result.tensors if "model" in tensor.id.module]
    assert [run.adapter for run in result.runs[:2]] == ["native", "acme"]


def test_the_adapter_is_asked_for_its_own_models_only() -> None:
    model, _ = made(4)
    assert find_adapter(model).name == "native"
    assert find_adapter(import_module("acme").Engine(model, lr=0.1)).name == "acme"


def test_the_rule_speaks_beside_those_of_ttrace() -> None:
    (rule,) = (rule for rule in find_rules() if type(rule).__name__ == "Untrained")
    plain_one = tensor(TensorId.parse("step0/a:main_grad.weight"), 0, 0.3)
    assert plain_one.statistics is not None
    zero = replace(plain_one, statistics=replace(plain_one.statistics, reference_norm=0.0))
    assert [found.verdict for found in ruled(rule, [plain_one])] == [Verdict.PASS]
    assert [found.verdict for found in ruled(rule, [zero])] == [Verdict.UNDECIDED]


def test_the_adapter_passes_the_conformance_suite() -> None:
    import_module("test_acme").test_the_adapter_keeps_its_promises()


def test_the_conformance_suite_would_refuse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = import_module("ttrace_acme.adapter").AcmeAdapter
    monkeypatch.setattr(adapter, "modules", lambda self: iter([("", self.roots[0])] * 2))
    with pytest.raises(AssertionError, match="breaks"):
        import_module("test_acme").test_the_adapter_keeps_its_promises()


def test_large_tensors_are_stored_rounded_and_compare(tmp_path: Path) -> None:
    reference, candidate = plain(tmp_path / "a", width=64), plain(tmp_path / "b", width=64)
    perturbed = plain(tmp_path / "c", width=64, noise_seed=1)
    journal = (reference / "rank-00000/journal.jsonl").read_text()
    assert '"payload":["rounded",{}]' in journal.replace(" ", "")
    result = ttrace.check(reference, candidate, perturbed=[perturbed])
    assert result.outcome is Outcome.EQUIVALENT, str(result)
    assert {tensor.dtype for tensor in result.tensors} == {"bfloat16", "float32"}


def test_the_engine_measures_what_one_process_does(tmp_path: Path) -> None:
    traces = [plain(tmp_path / name) for name in ("reference", "candidate")]
    engine = find_engine("threads")
    assert type(engine).__module__ == "ttrace_acme.engine"
    assert ttrace.check(*traces, engine=engine).to_dict() == ttrace.check(*traces).to_dict()


def test_the_mistake_is_recognised_and_said() -> None:
    expected = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)).double()
    found = mistakes.diagnose(Suspect(expected=expected, found=expected.clamp_min(0), allowed=1e-6))
    assert found is not None
    assert (found.mistake, found.sentence.partition(":")[0]) == (
        "rectified",
        "negative values are zero, others are right",
    )
    assert mistakes.diagnose(Suspect(expected=expected, found=2.5 * expected, allowed=1e-6)) is None


def test_the_form_of_report_is_found_by_its_name(tmp_path: Path) -> None:
    result: CheckResult = ttrace.check(plain(tmp_path / "reference"), plain(tmp_path / "candidate"))
    (tmp_path / "result.json").write_text(dumps(result.to_dict()))
    invoke("report", str(tmp_path / "result.json"), "--form", f"csv={tmp_path / 'table.csv'}")
    rows = (tmp_path / "table.csv").read_text().splitlines()
    assert rows[0] == "id,verdict,ratio"
    assert len(rows) == 1 + len(result.tensors)


def test_the_executor_runs_both_sides(tmp_path: Path) -> None:
    prefixed = import_module("ttrace_acme.executor").Prefixed
    script = f"{sys.executable} {tiny_train.__file__} --light"
    out = tmp_path / "out"
    result = ttrace.diff(script, script, out=out, execute=prefixed("env", "PREFIXED=1"))
    assert result.outcome is Outcome.EQUIVALENT, str(result)
    with pytest.raises(ttrace.CommandFailed, match="the reference run ended with exit code 3"):
        ttrace.diff(f"{script} --fail", script, out=tmp_path / "failing", execute=prefixed())


def test_the_planted_bug_is_named_and_its_twin_passes(pool: WorkerPool, tmp_path: Path) -> None:
    import_module("planted")
    try:
        bug = find("gradients-never-divided", Family.NATIVE)
    finally:
        BUGS.pop((Family.NATIVE, "gradients-never-divided"))
    trials = Trials(pool, tmp_path)
    assert bug.is_named_by(trials.bug(bug).named)
    assert trials.twin(bug).is_silent
