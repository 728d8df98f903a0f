"""Pages of the documentation: the files that they show whole, each in a block with its name."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FILE = re.compile(r'^```\w+ title="(.*?)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)


def write_files(page: str, folder: Path) -> None:
    """Save every file of a page as a reader would."""
    for name, text in files_of(page).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def files_of(page: str) -> dict[str, str]:
    return dict(_FILE.findall((ROOT / page).read_text()))
