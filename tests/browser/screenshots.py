"""Pictures of the report of real runs for the documentation: `make screenshots`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.browser import gallery
from tests.browser.pictures import save_element, save_page, save_window
from tests.support.pages import write_files

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs/images"
RUNS = ROOT / "ttrace-out" / "screenshots"
CARD = "#answer article.card"
DEMOS = {"clean": [], "buggy": ["--bug", "row-bias"]}
WIDTH = 1280  # chosen: as wide as a laptop's window


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


def run_ttrace(folder: Path, *arguments: str) -> None:
    """From inside of a folder, so that no path of ours is in its page."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        [sys.executable, "-m", "ttrace", *arguments],
        cwd=folder,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        check=False,
    )


def run_demos() -> dict[str, Path]:
    for name, options in DEMOS.items():
        run_ttrace(ROOT, "demo", *options, "--out", str((RUNS / name).relative_to(ROOT)))
    return {name: gallery.page_of(RUNS / name / "result.json", traces=name) for name in DEMOS}


def run_tutorial() -> dict[str, Path]:
    """What docs/tutorial/first-bug.md does, up to its last report."""
    folder = RUNS / "tutorial"
    folder.mkdir()
    write_files("docs/tutorial/first-bug.md", folder)
    shutil.copy(ROOT / "examples/first_bug/train.py", folder)
    for out in ("buggy", "fixed"):
        run_ttrace(
            folder,
            *("diff", "--out", out, "--reference", "python train.py"),
            *("--candidate", "torchrun --standalone --nproc-per-node 2 train.py"),
        )
        if out == "buggy":
            subprocess.run(["patch", "train.py", "fix.diff"], cwd=folder, check=True)
    return {out: folder / out / "report.html" for out in ("buggy", "fixed")}


def main() -> None:
    shutil.rmtree(RUNS, ignore_errors=True)
    RUNS.mkdir(parents=True)
    take_pictures(run_demos(), run_tutorial(), gallery.pages_of_bugs(RUNS / "bugs"))


def take_pictures(demos: dict[str, Path], tutorial: dict[str, Path], bugs: dict[str, Path]) -> None:
    """All pictures of docs/images that show a page."""
    browser = open_browser((WIDTH, 1000))
    try:
        for name, page, dark in (
            ("report-failing", demos["buggy"], False),
            ("report-failing-dark", demos["buggy"], True),
            ("report-clean", demos["clean"], False),
            ("first-bug", tutorial["buggy"], False),
            ("first-bug-fixed", tutorial["fixed"], False),
        ):
            visit(browser, page, dark=dark)
            save_window(browser, IMAGES / f"{name}.png")
        visit(browser, tutorial["buggy"])
        save_element(browser, CARD, IMAGES / "first-bug-card.png")
        for kind, bug in gallery.KINDS.items():
            visit(browser, bugs[bug])
            save_element(browser, CARD, IMAGES / "gallery" / f"{kind}.png")
        for bug in gallery.WHOLE:
            visit(browser, bugs[bug])
            save_page(browser, IMAGES / "gallery" / f"page-{bug}.png")
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
