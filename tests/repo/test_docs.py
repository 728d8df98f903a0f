"""Every command the documentation shows is run, in order, with the exit code it promises."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from ttrace.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [
    "docs/tutorial/first-bug.md",
    "docs/how-to/megatron.md",
    "docs/how-to/trace-your-script.md",
]


def commands(page: str) -> list[tuple[str, int]]:
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    shown = [line[2:] for block in blocks for line in block.splitlines() if line[:2] == "$ "]
    found = []
    for line in shown:
        command, _, promise = line.partition("    # exits ")
        found.append((command, int(promise or 0)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for command, code in commands(page):
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert ended.value.code == code, f"{command}\n{printed.out}{printed.err}"
        if "demo --bug" in command:
            assert words(printed.out)[: len(words(shown_in_readme()))] == words(shown_in_readme())


def shown_in_readme() -> str:
    """The output of the same command; numbers depend on the CPU, words and order do not."""
    after = (ROOT / "README.md").read_text().split("<!-- output of: ttrace demo --bug ")[1]
    assert after.startswith("column-input-grad -->")
    return after.split("```text\n")[1].split("```")[0]


def words(text: str) -> list[str]:
    return [word for word in text.split() if not re.fullmatch(r"[\d.e+-]+", word)]


def test_every_page_with_commands_is_in_the_list() -> None:
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if commands(page)} == set(PAGES)


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)#h][^)]*)\)", page.read_text())


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    broken = [
        (str(page), link)
        for page in pages
        for link in links(page)
        if not (page.parent / link).exists()
    ]
    assert broken == []
