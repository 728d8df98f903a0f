"""Pictures of the report for the documentation: `make screenshots`."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def open_browser(size: tuple[int, int] = (1480, 1180)) -> Any:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--hide-scrollbars", f"--window-size={size[0]},{size[1]}"),
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    return webdriver.Chrome(options=options, service=service)


def visit(browser: Any, page: Path, *, dark: bool = False) -> float:
    """Open a page and wait until it is drawn; milliseconds from its start, by its own clock."""
    media = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [media]})
    browser.get(page.as_uri())
    deadline = time.monotonic() + 60
    while not browser.execute_script("return document.documentElement.dataset.ready"):
        assert time.monotonic() < deadline, browser.get_log("browser")
        time.sleep(0.02)
    return float(browser.execute_script("return Number(document.documentElement.dataset.ready)"))


def main() -> None:
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
    from made_results import made
    from ttrace.report.html import render

    folder = ROOT / "docs/images"
    folder.mkdir(exist_ok=True)
    browser = open_browser()
    page = folder / "page.html"
    try:
        for name, wrong, dark in (
            ("report-failing", 2, False),
            ("report-failing-dark", 2, True),
            ("report-clean", None, False),
        ):
            page.write_text(render(made(4, wrong_layer=wrong)), encoding="utf-8")
            visit(browser, page, dark=dark)
            browser.save_screenshot(str(folder / f"{name}.png"))
            print(folder / f"{name}.png")
    finally:
        page.unlink(missing_ok=True)
        browser.quit()


if __name__ == "__main__":
    main()
