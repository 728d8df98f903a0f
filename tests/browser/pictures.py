"""Pictures of a page as small files, which change only where the page does.

Enters: a browser that shows a page. Leaves: PNG files of 256 colours.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops

_COLOURS = 256  # as many as a palette holds


def save_window(browser: Any, file: Path) -> None:
    """What the window shows."""
    _save(browser.get_screenshot_as_png(), file)


def save_element(browser: Any, selector: str, file: Path) -> None:
    """The first element that matches, and nothing around it."""
    element = browser.find_element("css selector", selector)
    _save(element.screenshot_as_png, file)


def save_page(browser: Any, file: Path) -> None:
    """The page from top to bottom, in a window that is as high."""
    size = browser.get_window_size()
    around = size["height"] - int(browser.execute_script("return innerHeight"))
    for _ in range(3):  # parts of a page grow with the window
        height = browser.execute_script("return document.documentElement.scrollHeight")
        browser.set_window_size(size["width"], around + height)
    save_window(browser, file)
    browser.set_window_size(size["width"], size["height"])


def _save(shot: bytes, file: Path) -> None:
    """A picture that shows the same is left as it is."""
    colours = Image.open(BytesIO(shot)).convert("RGB")
    picture = colours.quantize(_COLOURS, dither=Image.Dither.NONE)
    if not _is_shown_by(picture, file):
        file.parent.mkdir(parents=True, exist_ok=True)
        picture.save(file, optimize=True)
    print(file, f"{file.stat().st_size // 1024} KB")


def _is_shown_by(picture: Image.Image, file: Path) -> bool:
    if not file.exists():
        return False
    with Image.open(file) as kept:
        one, other = kept.convert("RGB"), picture.convert("RGB")
    return one.size == other.size and ImageChops.difference(one, other).getbbox() is None
