"""Pictures of the report of real runs for the documentation: `make screenshots`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RUNS = {"clean": [], "failing": ["--bug", "column-input-grad"]}


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


def run_demo(name: str) -> Path:
    """The page of a run of the demo; with a relative folder, so that no path of ours is in it."""
    folder = Path("ttrace-out") / "screenshots" / name
    shutil.rmtree(ROOT / folder, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "ttrace", "demo", "--out", str(folder), *RUNS[name]],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": "src", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    return ROOT / folder / "report.html"


def main() -> None:
    images = ROOT / "docs/images"
    pages = {name: run_demo(name) for name in RUNS}
    browser = open_browser()
    try:
        for name, page, dark in (
            ("report-failing", pages["failing"], False),
            ("report-failing-dark", pages["failing"], True),
            ("report-clean", pages["clean"], False),
        ):
            visit(browser, page, dark=dark)
            browser.save_screenshot(str(images / f"{name}.png"))
            print(images / f"{name}.png")
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
