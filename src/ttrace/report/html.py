"""One HTML file that shows a whole result: no network, no external script, font or style.

Enters: a CheckResult. Leaves: the text of the page. Its parts stand under page/, put together
here; the data is compressed JSON, which only ever becomes text nodes and numbers in the page.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from importlib import resources

from ttrace import report
from ttrace.core.results import CheckResult
from ttrace.report import overall
from ttrace.report.payload import payload
from ttrace.text import inert
from ttrace.trace.store import PathOrUrl, place_of

# In this order: each uses only what stands above it.
SCRIPTS = (
    *("dom", "numbers", "copy", "terms", "scale", "link", "mesh", "code", "sure", "card", "tree"),
    *("data", "tabs", "heat", "printed", "depth", "difference", "tensor", "settings", "main"),
)


def render(result: CheckResult) -> str:
    """The page as text."""
    script = "(() => {\n'use strict';\n" + "\n".join(_part(f"{n}.js") for n in SCRIPTS) + "\n})();"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = json.dumps(payload(result), separators=(",", ":"), allow_nan=False)
    packed = base64.b64encode(gzip.compress(data.encode(), compresslevel=6, mtime=0)).decode()
    parts = {
        "@POLICY@": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        "@STYLE@": _part("style.css"),
        "@SCRIPT@": script,
        "@DATA@": packed,
        "@TITLE@": html.escape(inert(overall.headline(result))),
    }
    page = _part("page.html")
    for name, text in parts.items():
        # The title comes last and alone has words of a user: they must not be taken for a name.
        page = page.replace(name, text)
    return page


def write_report(result: CheckResult, place: PathOrUrl | str) -> None:
    """The page as a file, of this machine or behind a URL."""
    place_of(place).write_text(render(result), encoding="utf-8")


def _part(name: str) -> str:
    return resources.files(report).joinpath("page", name).read_text(encoding="utf-8")
