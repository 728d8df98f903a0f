"""Megatron-Core: every planted bug and its correct twin, and every layout, through the whole flow.

    make bench-megatron         # python -m benchmarks.megatron bugs|layouts|all [NAME ...]

Prints a table as it goes and writes it to docs/reference/megatron.md. Needs megatron-core, and the
folders tests and examples/megatron_gpt on the path.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatron_training import MODEL_FIELDS, isolate, trace, trace_reference
from rich.progress import Progress
from worker_pool import WorkerPool

from ttrace.core.results import CheckResult, Verdict
from ttrace.pipeline import check
from ttrace.testing.megatron_cpu import on_cpu

_ROOT = Path(__file__).parents[1]
_PAGE = _ROOT / "docs" / "reference" / "megatron.md"
_RANKS = 4

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "TP2": (2, {"tp": 2}),
    "TP2 SP": (2, {"tp": 2, "sp": True}),
    "TP2 untied": (2, {"tp": 2, "untied": True}),
    "DP2": (2, {}),
    "DP2 overlapped": (2, {"overlap": True}),
    "DP2 per-token loss": (2, {"per_token": True}),
    "DP2 ZeRO-1": (2, {"zero1": True}),
    "DP2 ZeRO-1 overlapped, 2 steps": (
        2,
        {"zero1": True, "overlap": True, "gather_late": True, "steps": 2},
    ),
    "recompute full": (1, {"recompute": "full"}),
    "recompute selective": (1, {"recompute": "selective"}),
    "TP2 SP recompute full": (2, {"tp": 2, "sp": True, "recompute": "full"}),
    "PP2": (2, {"pp": 2}),
    "PP2 untied": (2, {"pp": 2, "untied": True}),
    "PP3, 2 + 1 + 1 layers": (3, {"pp": 3, "first_stage": 2}),
    "PP2 VPP2": (2, {"pp": 2, "vpp": 2}),
    "PP3 VPP2": (3, {"pp": 3, "vpp": 2, "layers": 6, "microbatches": 6}),
    "CP2": (2, {"cp": 2}),
    "CP2 DP2": (4, {"cp": 2}),
    "CP2 per-token loss": (2, {"cp": 2, "per_token": True}),
    "TP2 SP PP2": (4, {"tp": 2, "sp": True, "pp": 2}),
    "TP2 SP CP2": (4, {"tp": 2, "sp": True, "cp": 2}),
    "TP2 SP DP2 ZeRO-1": (4, {"tp": 2, "sp": True, "zero1": True}),
    "PP2 VPP2 DP2 ZeRO-1 overlapped": (
        4,
        {"pp": 2, "vpp": 2, "zero1": True, "overlap": True, "gather_late": True},
    ),
    "EP2 all-to-all": (2, {"ep": 2, "experts": 4}),
    "EP2 all-gather": (2, {"ep": 2, "experts": 4, "dispatcher": "allgather"}),
    "EP2 ZeRO-1": (2, {"ep": 2, "experts": 4, "zero1": True}),
    "MoE PP2": (2, {"pp": 2, "experts": 4}),
    "TP2 SP EP2": (2, {"tp": 2, "sp": True, "ep": 2, "etp": 1, "experts": 4}),
    "TP2 SP EP2 ETP2": (4, {"tp": 2, "sp": True, "ep": 2, "etp": 2, "experts": 4}),
    "TP2 SP, multi-token head": (2, {"tp": 2, "sp": True, "mtp": 1}),
}


@dataclass(slots=True)
class Lab:
    """The pool of ranks, and references that several runs share."""

    pool: WorkerPool = field(default_factory=lambda: WorkerPool(_RANKS))
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="megatron-")))
    references: dict[str, tuple[Path, Path]] = field(default_factory=dict)
    known: dict[str, Outcome] = field(default_factory=dict)  # correct twins serve several bugs
    runs: int = 0

    def reference(self, model: dict[str, Any]) -> tuple[Path, Path]:
        key = repr(sorted(model.items()))
        if key not in self.references:
            self.references[key] = trace_reference(self.pool, self.new("reference"), **model)
        return self.references[key]

    def new(self, name: str) -> Path:
        self.runs += 1
        return self.folder / f"{self.runs}-{name}"

    def compare(self, ranks: int, layout: dict[str, Any], bug: str = "", twin: str = "") -> Outcome:
        """As `ttrace diff`: a comparison, and an isolated run where that fails."""
        key = repr((ranks, sorted(layout.items()), bug, twin))
        if key not in self.known:
            self.known[key] = self._compare(ranks, layout, bug, twin)
        return self.known[key]

    def _compare(self, ranks: int, layout: dict[str, Any], bug: str, twin: str) -> Outcome:
        start = time.monotonic()
        model = {name: value for name, value in layout.items() if name in MODEL_FIELDS}
        model |= {"bug": twin} if twin else {}
        reference, noisy = self.reference(model)
        candidate = trace(self.pool, self.new("candidate"), ranks, bug, **layout)
        result = check(reference, candidate, [noisy])
        isolated = None
        if result.exit_code == 1:
            folder = self.new("isolated")
            isolated = isolate(
                self.pool, folder, candidate, ranks, layout, reference=model, bug=bug
            )
            shutil.rmtree(folder)
        shutil.rmtree(candidate)
        return Outcome(result, isolated, time.monotonic() - start)

    def close(self) -> None:
        self.pool.close()
        shutil.rmtree(self.folder)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out, as `ttrace diff` would say it."""

    result: CheckResult
    isolated: CheckResult | None
    seconds: float

    @property
    def culprits(self) -> list[tuple[str, str]]:
        found = self.isolated if self.isolated and self.isolated.culprits else self.result
        return [(culprit.where, culprit.part) for culprit in found.culprits]

    @property
    def largest(self) -> float:
        return max((r.ratio or 0.0 for r in self.result.tensors), default=0.0)

    def evidence(self) -> float:
        """The error of what was blamed, in units of its tolerance."""
        source = self.isolated if self.isolated and self.isolated.culprits else self.result
        blamed = {id_ for culprit in source.culprits for id_ in culprit.evidence}
        return max((r.ratio or 0.0 for r in source.tensors if r.id in blamed), default=0.0)


def bug_rows(lab: Lab, names: Sequence[str]) -> Iterator[str]:
    from ttrace.testing.megatron_bugs import all_bugs

    yield "| bug | from | layout | found | named | as it should | error / tolerance | twin | s |"
    yield "|---|---|---|---|---|---|---|---|---|"
    with on_cpu():
        bugs = all_bugs()
    for bug in bugs.values():
        if names and bug.name not in names:
            continue
        layout = dict(bug.layout)
        twin = f"twin:{bug.name}" if bug.twin else ""
        in_reference = twin if bug.twin_in_reference else ""
        wrong = lab.compare(bug.ranks, layout, bug.name, in_reference)
        right = lab.compare(bug.ranks, _correct(layout), twin, in_reference)
        named = "; ".join(f"{where}, {part}" for where, part in wrong.culprits[:2])
        more = len(wrong.culprits) - 2
        named += f" and {more} more" if more > 0 else ""
        exact = bool(wrong.culprits) and all(
            where in bug.where and part in bug.part.split(" or ") for where, part in wrong.culprits
        )
        shown = " ".join(f"{k}={v}" for k, v in layout.items()) or "DP2"
        silent = "silent" if right.result.exit_code == 0 else f"exit {right.result.exit_code}"
        yield (
            f"| {bug.name} | {bug.source} | {shown} | {_yes(wrong.result.exit_code == 1)} "
            f"| {named} | {_yes(exact)} | {wrong.evidence():.3g} | {silent} | {wrong.seconds:.0f} |"
        )


def layout_rows(lab: Lab, names: Sequence[str]) -> Iterator[str]:
    yield "| layout | dtype | verdict | tensors | recorded | error / tolerance | s |"
    yield "|---|---|---|---|---|---|---|"
    for name, (ranks, layout) in LAYOUTS.items():
        if names and name not in names:
            continue
        for bf16 in (False, True):
            found = lab.compare(ranks, layout | {"bf16": bf16})
            tensors = found.result.tensors
            judged = sum(r.verdict not in (Verdict.UNDECIDED, Verdict.EXTRA) for r in tensors)
            verdict = {0: "equivalent", 1: "ALARM", 2: "undecided"}[found.result.exit_code]
            yield (
                f"| {name} | {'bf16' if bf16 else 'fp32'} | {verdict} | {len(tensors)} | "
                f"{100 * judged / len(tensors):.1f}% | {found.largest:.2f} | {found.seconds:.0f} |"
            )


def _correct(layout: dict[str, Any]) -> dict[str, Any]:
    """The layout without the flag that is itself the mistake."""
    return {name: value for name, value in layout.items() if name != "batch_p2p"}


def _yes(value: bool) -> str:  # noqa: FBT001
    return "yes" if value else "no"


_TABLES = {"bugs": bug_rows, "layouts": layout_rows}


def main(arguments: Sequence[str]) -> None:
    logging.disable(logging.ERROR)
    what, names = (arguments[0] if arguments else "all"), arguments[1:]
    tables: dict[str, list[str]] = {}
    lab = Lab()
    try:
        with Progress(transient=True) as progress:
            for title in _TABLES if what == "all" else [what]:
                task = progress.add_task(title, total=None)
                tables[title] = []
                for row in _TABLES[title](lab, names):
                    print(row, flush=True)
                    tables[title].append(row)
                    progress.advance(task)
    finally:
        lab.close()
    if not names:
        _write(tables)


def _write(tables: dict[str, list[str]]) -> None:
    """Each table stands between two marks of the page."""
    text = _PAGE.read_text()
    for title, rows in tables.items():
        head, _, rest = text.partition(f"<!-- {title} -->\n")
        _, _, tail = rest.partition("<!-- end -->\n")
        text = f"{head}<!-- {title} -->\n" + "\n".join(rows) + f"\n<!-- end -->\n{tail}"
    _PAGE.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
