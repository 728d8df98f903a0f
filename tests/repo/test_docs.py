"""Every command the documentation shows is run, in order, with the exit code it promises."""

import gzip
import importlib.util
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.pages import files_of, write_files
from ttrace.cli import main
from ttrace.report.json_file import read_result
from ttrace.report.terminal import print_check

ROOT = Path(__file__).parents[2]
PAGES = [
    "docs/tutorial/first-bug.md",
    "docs/explanation/fingerprints.md",
    "docs/how-to/accumulation.md",
    "docs/how-to/ci.md",
    "docs/how-to/doctor.md",
    "docs/how-to/dropout-and-batchnorm.md",
    "docs/how-to/hand-written-parallelism.md",
    "docs/how-to/large-checks.md",
    "docs/how-to/megatron.md",
    "docs/how-to/moe.md",
    "docs/how-to/object-storage.md",
    "docs/how-to/padded-and-packed.md",
    "docs/how-to/pipelines.md",
    "docs/how-to/pytest.md",
    "docs/how-to/read-the-report.md",
    "docs/how-to/several-losses.md",
    "docs/how-to/simulated-ranks.md",
    "docs/how-to/slurm.md",
    "docs/how-to/trace-your-script.md",
    "docs/how-to/watch.md",
    "docs/how-to/whatif.md",
]
# Of trainers, with what they need.
TRAINER_PAGES = {
    "docs/how-to/accelerate.md": "accelerate",
    "docs/how-to/deepspeed.md": "deepspeed",
    "docs/how-to/huggingface.md": "transformers",
    "docs/how-to/lightning.md": "lightning",
    "docs/how-to/torchtitan.md": "torchtitan",
}
SAID = re.compile(r"<!-- said by: (.*?) -->\n```text\n(.*?)```", re.DOTALL)

FILE = re.compile(r"(?<![\w./])((?:benchmarks|docs|examples|src|studies|tests|zoo)/[\w/.-]+\.\w+)")
# In backticks or code: a dotted name of this package, not a group of entry points or a file.
GROUPS = "adapters|engines|mistakes|payloads|report_forms|rules"
MODULE = re.compile(rf"\b(ttrace\.(?!(?:{GROUPS})[`\"])[a-z_]+(?:\.[A-Za-z_]+)*)\b(?!/)")


def commands(page: str) -> list[tuple[str, int]]:
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    shown = [line[2:] for block in blocks for line in block.splitlines() if line[:2] == "$ "]
    found = []
    for line in shown:
        command, _, promise = line.partition("    # exits ")
        found.append((command, int(promise or 0)))
    return found


def pages() -> Iterator[object]:
    for page in PAGES:
        yield pytest.param(page, marks=pytest.mark.flow)
    for page, package in TRAINER_PAGES.items():
        lacks = importlib.util.find_spec(package) is None
        skip = pytest.mark.skipif(lacks, reason=f"{package} is not installed")
        yield pytest.param(page, marks=(pytest.mark.trainers, skip))


@pytest.mark.parametrize("page", list(pages()))
def test_commands_of_the_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for command, code in commands(page):
        if "--tensorboard" in command and importlib.util.find_spec("tensorboard") is None:
            pytest.skip("TensorBoard is not installed: `make test-flows` does it")
        ended, printed = run(command, monkeypatch, capsys)
        assert ended == code, f"{command}\n{printed}"
        if "demo --bug row-bias" in command:
            shown = words(shown_in_readme())
            assert words(on_a_terminal(tmp_path / "buggy/result.json"))[: len(shown)] == shown
        for start, shown in SAID.findall((ROOT / page).read_text()):
            # pytest marks the lines of a message and writes the exception's name in full.
            said = {word.removeprefix("ttrace.core.results.") for word in words(printed)}
            assert not command.startswith(start) or set(words(shown)) <= said, printed


def run(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Exit code and all that was said; ours in this process, others in a shell."""
    if not command.startswith("ttrace "):
        done = subprocess.run(
            ["bash", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    printed = capsys.readouterr()
    return ended.value.code, printed.out + printed.err


def shown_in_readme() -> str:
    """The output of the same command; numbers depend on the CPU, words and order do not."""
    after = (ROOT / "README.md").read_text().split("<!-- output of: ttrace demo --bug ")[1]
    assert after.startswith("row-bias -->")
    return after.split("```text\n")[1].split("```")[0]


def on_a_terminal(result: Path) -> str:
    """What a terminal of 100 columns shows, as the README does; a pipe gets longer lines."""
    terminal = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    print_check(read_result(result), terminal)
    assert isinstance(terminal.file, io.StringIO)
    return terminal.file.getvalue()


def test_sample_of_the_readme_is_what_a_terminal_shows_of_the_demo(tmp_path: Path) -> None:
    """Of a recorded result, without most tensors; read-the-report.md runs the demo itself."""
    recorded = ROOT / "tests/golden/demo/readme.json.gz"
    (tmp_path / "result.json").write_bytes(gzip.decompress(recorded.read_bytes()))
    shown = words(shown_in_readme())
    assert words(on_a_terminal(tmp_path / "result.json"))[: len(shown)] == shown


def words(text: str) -> list[str]:
    """Without numbers: 0.42, 567,000x, 14 million x, a bar; nor where the package is installed."""
    large = re.sub(r"\d[\d.]*\s+(?:million|billion|trillion)\s+x\b", "0x", text)
    short = re.sub(r"\(\S*ttrace/(demo/\w+\.py):\d+\)", r"\1", large)
    number = re.compile(r"\(?[\d.,e+-]+x?[),:;]*|[░▒█]+")
    return [word for word in short.split() if not number.fullmatch(word)]


def test_numbers_are_no_words_and_what_stands_around_them_is() -> None:
    for number in ("7x", "567,000x", "14 million x", "14 million\n  x", "1.2 billion x"):
        assert words(f"is wrong: {number} its tolerance") == words("is wrong: its tolerance")
    assert words("2 million tokens") == ["million", "tokens"]
    assert words("░▒██ noise 1e-07") == ["noise"]
    assert words("in f (/a/ttrace/demo/bugs.py:7)") == words("in f (src/ttrace/demo/bugs.py:81)")


def test_shown_output_belongs_to_a_command_of_its_page() -> None:
    for page in PAGES:
        for start, _ in SAID.findall((ROOT / page).read_text()):
            assert any(command.startswith(start) for command, _ in commands(page)), (page, start)


def test_every_page_with_commands_is_in_the_list() -> None:
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if commands(page)} == {*PAGES, *TRAINER_PAGES}


def test_every_script_that_a_page_shows_is_run_by_a_command_of_it() -> None:
    shown = [(page, name) for page in PAGES for name in files_of(page) if name.endswith(".py")]
    assert len(shown) > 5
    for page, name in shown:
        compile(files_of(page)[name], name, "exec")
        assert any(name in command for command, _ in commands(page)), (page, name)


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)#h][^)]*)\)", page.read_text())


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    broken = [
        (str(page), link)
        for page in pages
        for link in links(page)
        if not (page.parent / link.partition("#")[0]).exists()
    ]
    assert broken == []


def test_files_and_modules_that_pages_name_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    files = {(page, name) for page in pages for name in FILE.findall(page.read_text())}
    names = {(page, name) for page in pages for name in MODULE.findall(page.read_text())}
    assert len(files) > 5
    assert len(names) > 5
    gone = [(page.name, name) for page, name in files if not (ROOT / name).exists()]
    gone += [(page.name, name) for page, name in names if not is_there(name)]
    assert gone == []


def is_there(name: str) -> bool:
    """A module, or a name of one."""
    module, _, attribute = name.rpartition(".")
    spec = importlib.util.find_spec(module) if module else None
    if spec is None or spec.origin is None:
        return False
    try:
        is_in_it = hasattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:  # of a framework that is not installed
        return f"class {attribute}(" in Path(spec.origin).read_text()
    return is_in_it or importlib.util.find_spec(name) is not None


def test_a_module_that_is_gone_would_be_found() -> None:
    assert is_there("ttrace.capture.rounding")
    assert is_there("ttrace.testing.assert_equivalent")
    assert not is_there("ttrace.splitting")
    assert not is_there("ttrace.capture.absent")
