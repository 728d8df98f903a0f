"""The gallery of kinds of mistakes: for each of them a bug of the zoo whose report names it.

docs/reference/gallery.md shows the pictures; tests/repo/test_gallery.py holds both together.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from ttrace.report.html import render
from ttrace.report.json_file import read_result

ROOT = Path(__file__).parents[2]

# Bugs by the kind of mistake that their card names.
KINDS = {
    "missing-all-reduce": "norm-grad-unsynced",
    "missing-average": "lost-hooks",
    "sum-for-mean": "dp-scale",
    "divided-too-often": "averaged-parts",
    "factor-of-each-part": "count-of-each-rank",
    "wrong-factor": "shifted-after-split",
    "not-added-up": "accumulation-overwrite",
    "weighed-unequally": "mean-of-means",
    "same-vector": "row-bias",
    "parts-exchanged": "gate-after-value",
    "parts-in-other-order": "part-of-the-next",
    "transposed": "not-transposed-back",
    "one-place-later": "shifted-twice",
    "one-place-earlier": "positions-from-one",
    "opposite-sign": "sign-of-a-difference",
    "all-zero": "mask-never-filled",
    "not-updated": "stale-weights",
    "rounded-lower": "gathered-in-bf16",
    "compressed-reduction": "bf16-reduction",
    "other-data": "same-samples",
    "other-parameters": "router-by-rank",
    "cut-off": "detached",
    "wrong-norm": "local-clip-norm",
    "other-number": "rate-times-ranks",
    "no-state": "stale-optimizer",
    "one-term-of-a-sum": "column-input-grad",
    "no-pattern": "unsplit-positions",
}
# Bugs whose pages are shown whole.
WHOLE = ("column-input-grad", "row-bias", "norm-grad-unsynced", "local-clip-norm", "stale-weights")


def pages_of_bugs(folder: Path) -> dict[str, Path]:
    """The page of every bug of the gallery, from runs of them."""
    names = sorted({*KINDS.values(), *WHOLE})
    subprocess.run(
        [sys.executable, "-m", "benchmarks.bugs", *names, "--results", str(folder)],
        cwd=ROOT,
        check=True,
    )
    return {name: page_of(folder / f"{name}.json", traces="traces") for name in names}


def page_of(file: Path, *, traces: str) -> Path:
    """The page of a result, with another name for the folder of its runs, and none for packages."""
    runs = str(Path(read_result(file).reference).parent)
    packages = f"{sysconfig.get_path('purelib')}/"
    file.write_text(file.read_text().replace(runs, traces).replace(packages, ""))
    page = file.with_suffix(".html")
    page.write_text(render(read_result(file)), encoding="utf-8")
    return page
