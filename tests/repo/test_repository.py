"""The repository keeps its promises: the README's tree and commands, public names, import rules."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FRAMEWORK_PARTS = (
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor",
    "torch.nn.parallel",
)


def imports_of(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def framework_imports(file: Path) -> set[str]:
    return {name for name in imports_of(file) if name.startswith(FRAMEWORK_PARTS)}


def test_parts_of_torch_that_are_frameworks_are_imported_only_in_their_adapter_and_the_demo() -> (
    None
):
    """import-linter knows packages: it has contracts for megatron and deepspeed, and sees torch."""
    allowed = {ROOT / "src/ttrace/adapters/native", ROOT / "src/ttrace/demo"}
    guilty = {
        file.name: found
        for file in (ROOT / "src").rglob("*.py")
        if not allowed & set(file.parents) and (found := framework_imports(file))
    }
    assert guilty == {}


@pytest.mark.parametrize("part", FRAMEWORK_PARTS)
def test_framework_imports_would_be_found(part: str) -> None:
    files = (ROOT / "src/ttrace/adapters/native").glob("*.py")
    assert any(name.startswith(part) for file in files for name in framework_imports(file))


def test_no_pickle_in_the_package() -> None:
    for file in (ROOT / "src").rglob("*.py"):
        assert not {"pickle", "torch.load", "torch.save"} & imports_of(file), file
        assert "torch.load(" not in file.read_text(), file


# What the code beside the package may not import; studies may import all but tests.
FORBIDDEN = {
    "zoo": {"attacks", "benchmarks", "studies", "tests"},
    "benchmarks": {"attacks", "studies", "tests"},
    "tests": {"benchmarks", "studies"},
}
CHECKED_BENCHMARK = ROOT / "tests/unit/test_bench.py"  # tests what `make bench` says itself


def wrong_way_imports(root: Path) -> set[tuple[str, str]]:
    """Files of a folder, with the other folder that they import and may not."""
    return {
        (str(file.relative_to(root)), top)
        for folder, forbidden in FORBIDDEN.items()
        for file in (root / folder).rglob("*.py")
        if file != CHECKED_BENCHMARK
        for top in forbidden & {name.partition(".")[0] for name in imports_of(file)}
    }


def test_tests_and_benchmarks_import_the_zoo_and_nothing_imports_them() -> None:
    assert wrong_way_imports(ROOT) == set()


def test_an_import_of_a_study_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text("from studies.power.runs import Model\n")
    assert wrong_way_imports(tmp_path) == {("tests/test_it.py", "studies")}


IMPORTS_OF_TESTS = re.compile(r"^(?:from|import) (tests\.[\w.]*\btest_\w+)", re.MULTILINE)


def test_test_modules_are_no_libraries_of_each_other() -> None:
    """Helpers that several of them need stand in tests/support, or in the zoo."""
    imported = {
        (str(file.relative_to(ROOT)), module)
        for file in (ROOT / "tests").rglob("*.py")
        for module in IMPORTS_OF_TESTS.findall(file.read_text())
        if f"{module.replace('.', '/')}.py" != str(file.relative_to(ROOT))
    }
    assert imported == set()
    assert IMPORTS_OF_TESTS.findall("x\nfrom tests.unit.core.test_ids import made\n")


def shown_commands(text: str) -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.flow
@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (1, 0, "EQUIVALENT: all"),
        pytest.param(
            2,
            1,
            "NOT EQUIVALENT: gradient reduction, main gradient",
            marks=pytest.mark.flow,
        ),
    ],
    ids=["correct", "wrong-average"],
)
def test_readme_diff_commands_run(command: int, code: int, says: str, tmp_path: Path) -> None:
    commands = [line for line in shown_commands(README) if line.startswith("ttrace diff")]
    line = f"{commands[command - 1]} --out {tmp_path / 'out'}"
    folder = Path(sys.executable).parent
    done = subprocess.run(
        line.replace("ttrace diff", f"{sys.executable} -m ttrace diff", 1),
        shell=True,
        cwd=ROOT,
        env={"PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": "src", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert says in done.stdout


def test_every_command_of_the_readme_is_run_by_a_test() -> None:
    """The two above; a page runs the demo, whose output is compared with the README's."""
    others = [line for line in shown_commands(README) if not line.startswith("ttrace diff")]
    assert len(shown_commands(README)) == 2 + len(others)
    page = shown_commands((ROOT / "docs/how-to/read-the-report.md").read_text())
    assert [line for line in others if not any(x.startswith(line) for x in page)] == []


def test_the_readme_is_short_and_its_sample_fits_100_columns() -> None:
    assert len(README.splitlines()) <= 120
    samples = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    assert samples
    assert max(len(line) for sample in samples for line in sample.splitlines()) <= 100
