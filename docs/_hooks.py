"""What the documentation site needs beside its pages; mkdocs calls the functions named `on_...`.

Files of the repository that pages link to (`../../examples/...`) become part of the site, so that
the same link holds in a clone and on the site. A built site that would load anything from the
network is refused: it must open on a machine that has none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PLACE = "repository"  # the folder of the site that holds linked files of the repository
LINK = re.compile(r"\]\((?P<up>(?:\.\./)+)(?P<path>(?:examples|src|tests|zoo)/[^)#]+)")
ASSET = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?P<src>(?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?![^>]*\brel=["']?canonical)[^>]*\bhref=["']?(?P<href>(?:https?:)?//[^"'\s>]+)"""
    r"""|(?:url\(|@import\s)["']?(?P<css>(?:https?:)?//[^"')\s]+)"""
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every linked file of the repository, as text that a browser shows."""
    from mkdocs.structure.files import File

    texts = [page.content_string for page in files.documentation_pages()]
    for path in sorted({link["path"] for text in texts for link in LINK.finditer(text)}):
        linked = File.generated(config, f"{PLACE}/{path}", abs_src_path=str(ROOT / path))
        linked.dest_uri = f"{linked.src_uri}.txt"
        files.append(linked)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files of the repository to their place on the site."""
    up = "../" * page.file.src_uri.count("/")
    return LINK.sub(lambda link: f"]({up}{PLACE}/{link['path']}", markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that loads something from the network."""
    from mkdocs.exceptions import PluginError

    site = Path(config.site_dir)
    loaded = {
        f"{file.relative_to(site)}: {asset}"
        for file in sorted([*site.rglob("*.html"), *site.rglob("*.css")])
        for asset in assets_of_the_network(file.read_text())
    }
    if loaded:
        raise PluginError("the site would load from the network:\n" + "\n".join(sorted(loaded)))


def assets_of_the_network(text: str) -> list[str]:
    """Addresses of scripts, styles, fonts and pictures that a page or a style sheet would load."""
    return [next(filter(None, found.groups())) for found in ASSET.finditer(text)]
