"""The commit that is checked out around a folder, read from .git without running git.

Enters: a folder. Leaves: the commit's hash, or nothing where there is no repository or it is kept
in a form that is not plain files.
"""

from __future__ import annotations

import re
from pathlib import Path

_HASH = re.compile(r"[0-9a-f]{40,64}")


def checked_out(folder: Path) -> str | None:
    """The hash that HEAD names."""
    for parent in (folder, *folder.parents):
        entry = parent / ".git"
        if entry.exists():
            try:
                return _head(entry)
            except (OSError, UnicodeDecodeError):
                return None
    return None


def _head(entry: Path) -> str | None:
    # A worktree has a file that names its own folder, which names the shared one.
    git = entry
    if entry.is_file():
        git = entry.parent / entry.read_text().removeprefix("gitdir:").strip()
    head = (git / "HEAD").read_text().strip()
    if _HASH.fullmatch(head):
        return head
    name = head.removeprefix("ref:").strip()
    shared = git / "commondir"
    common = git / shared.read_text().strip() if shared.exists() else git
    for place in (git, common):
        if (place / name).is_file():
            found = (place / name).read_text().strip()
            return found if _HASH.fullmatch(found) else None
    packed = common / "packed-refs"
    lines = packed.read_text().splitlines() if packed.exists() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)
