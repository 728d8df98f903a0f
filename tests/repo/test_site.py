"""The documentation site: it loads nothing from the network, and names all there is."""

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import ttrace
from ttrace import testing

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/ttrace"
API = (ROOT / "docs/reference/api.md").read_text()
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs/_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "loading",
    [
        '<script src="https://unpkg.com/x.js"></script>',
        "<link rel=stylesheet href=//fonts.example/css>",
        '<link href="https://fonts.example" rel="preconnect">',
        '<img alt="a" src="http://example.com/a.png">',
        "@import 'https://example.com/a.css'",
        "src: url(https://example.com/a.woff2)",
    ],
)
def test_an_asset_of_the_network_is_found(hooks: ModuleType, loading: str) -> None:
    assert len(hooks.assets_of_the_network(loading)) == 1


@pytest.mark.parametrize(
    "harmless",
    [
        '<a href="https://example.com">a link is not loaded</a>',
        '<link rel="canonical" href="https://example.com/index.html">',
        '<script src="assets/bundle.js"></script><img src="../images/a.png">',
        "src: url(../fonts/a.woff2)",
        "<code>url(here)</code>",
    ],
)
def test_links_and_own_files_are_not_assets_of_the_network(
    hooks: ModuleType, harmless: str
) -> None:
    assert hooks.assets_of_the_network(harmless) == []


def test_links_to_files_of_the_repository_are_recognised(hooks: ModuleType) -> None:
    (link,) = hooks.LINK.finditer("see [it](../../examples/01_data_parallel/train.py), [b](x.md)")
    assert (ROOT / link["path"]).is_file()


def documented() -> set[str]:
    return set(re.findall(r"^::: (\S+)$", API, re.MULTILINE))


def test_public_names_are_sorted_and_on_the_api_page() -> None:
    assert ttrace.__all__ == sorted(ttrace.__all__)
    for name in ttrace.__all__:
        assert hasattr(ttrace, name)
        assert f"ttrace.{name}" in documented() or f"`ttrace.{name}`" in API, name
    (shown,) = re.findall(r"::: ttrace\.testing\n.*?members: \[(.*?)\]", API, re.DOTALL)
    assert sorted(shown.split(", ")) == sorted(testing.__all__)


def test_the_api_page_names_nothing_that_is_not_there() -> None:
    names = {name.removeprefix("ttrace.") for name in documented()}
    gone = {name for name in names if "." not in name and not hasattr(ttrace, name)}
    assert gone == set()


def rooms() -> set[str]:
    return {file.parent.name for file in PACKAGE.glob("*/__init__.py")}


def test_every_room_is_in_the_architecture_and_nothing_else() -> None:
    named = re.findall(r"^\| `(\w+)` \|", ARCHITECTURE, re.MULTILINE)
    assert len(named) == len(set(named))
    assert set(named) == rooms()


def test_rooms_are_where_the_layers_are() -> None:
    """The table has the order of the contract, from the front door to the cellar."""
    layers = (ROOT / "pyproject.toml").read_text().split("layers = [")[1].split("]")[0]
    order = [name for name in re.findall(r"\w+", layers) if name in rooms()]
    assert re.findall(r"^\| `(\w+)` \|", ARCHITECTURE, re.MULTILINE) == order


def test_files_named_in_the_architecture_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)`", ARCHITECTURE)
    assert named
    assert [name for name in named if not (PACKAGE / name).is_file()] == []


def test_every_module_says_what_it_is_about_in_its_first_line() -> None:
    first = {
        str(file.relative_to(PACKAGE)): (ast.get_docstring(ast.parse(file.read_text())) or "")
        for file in PACKAGE.rglob("*.py")
    }
    silent = [name for name, text in first.items() if not text.partition("\n")[0].strip()]
    assert silent == []
