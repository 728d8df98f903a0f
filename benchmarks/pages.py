"""Tables of documentation that commands write, each between a comment with its name and an end."""

from __future__ import annotations

_END = "<!-- end -->"


def replaced(text: str, name: str, table: str) -> str:
    """The page with another table of this name."""
    before, _, after = _around(text, name)
    return f"{before}\n{table.strip()}\n\n{after}"


def table_of(text: str, name: str) -> str:
    """The table of this name as it stands in a page."""
    return _around(text, name)[1].strip()


def _around(text: str, name: str) -> tuple[str, str, str]:
    before, mark, rest = text.partition(f"<!-- {name} -->\n")
    table, end, after = rest.partition(_END)
    if not mark or not end:
        raise ValueError(f"the page has no place for {name}: write <!-- {name} --> and {_END}")
    return f"{before}{mark}", table, f"{end}{after}"
