"""Two training functions, traced in process groups and compared; a difference is an AssertionError.

    NOT EQUIVALENT: mlp, forward
    root cause: mlp, forward: given the reference's values, output is wrong ...
    worst place: step0/mlp:output.0: row (3, 17) of dims 0, 1 is 100,000x what is allowed ...
    allowed: error norm 3e-06 (3 x noise of perturbed reference)
    report: ttrace-out/pytest/test_mlp/report.html

Enters: functions and sizes. Leaves: a result, or the failure with its message.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ttrace.core.results import CheckResult, NotEquivalent, Outcome
from ttrace.lab.experiment import Experiment
from ttrace.lab.functions import TASK_SECONDS, WorkerPool
from ttrace.lab.launch import LocalExecutor
from ttrace.lab.run import Function
from ttrace.report import json_file, overall, view, wording
from ttrace.report.catalogue.sentences import Line
from ttrace.report.wording import line, mesh_of
from ttrace.testing import KEPT, PAGES
from ttrace.text import inert_line

_LONGEST = 120  # chosen: bytes of a file's name, of which systems take 255
_CULPRITS = 3  # chosen: the first ones are where to look
_DEFAULT = Path("ttrace-out") / "pytest"  # reports of failures, unless told otherwise


def assert_equivalent(
    reference: Callable[..., Any],
    candidate: Callable[..., Any],
    *,
    world_size: int = 4,
    reference_world_size: int = 1,
    reference_args: Sequence[Any] = (),
    candidate_args: Sequence[Any] = (),
    isolate: bool = True,
    pool: WorkerPool | None = None,
    simulated: bool = False,
    **options: Any,
) -> CheckResult:
    """Trace both functions and compare; `isolate`: name the root cause (3 more runs).

    `simulated`: all ranks share one process. `options` are those of `ttrace.diff`, as `steps`,
    `strict`, and `accept` for a TOML file of what may differ.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    with _folder() as (folder, kept):
        experiment = Experiment(
            reference=Function(reference, reference_world_size, tuple(reference_args), simulated),
            candidate=Function(candidate, world_size, tuple(candidate_args), simulated),
            folder=folder,
            execute=LocalExecutor(pool),
            **{"timeout_seconds": TASK_SECONDS, **options},
        )
        result = experiment.diff() if isolate else experiment.compare()
        if kept:
            (folder / "result.json").write_text(json_file.render(result), encoding="utf-8")
    report = _write_report(result, folder if kept else None)
    if result.outcome is not Outcome.EQUIVALENT:
        raise NotEquivalent(failure_message(result, report), result)
    return result


def failure_message(result: CheckResult, report: Path | None) -> str:
    """Headline, culprit, worst place, allowed value, and where the report is."""
    lines = [overall.headline(result)]
    source = result.blamed_in
    shown = next(iter(result.failures or result.undecided), None)
    lines += [
        line(Line.ROOT_CAUSE, place=cause.place, reason=cause.reason)
        for cause in view.grouped(result)[:_CULPRITS]
    ]
    tensors = {tensor.id: tensor for tensor in source.tensors}
    named = [tensors[id_] for c in result.culprits for id_ in c.evidence if id_ in tensors]
    worst = max(named, key=lambda tensor: tensor.ratio or 0.0, default=shown)
    if worst is not None:
        evidence = wording.evidence_sentence(worst, mesh_of(result))
        lines.append(line(Line.WORST_PLACE, id=worst.id, evidence=evidence))
        if worst.tolerance is not None:
            allowed = worst.tolerance
            said = line(Line.ALLOWED, norm=allowed.error_norm, source=allowed.source)
            lines.append(said)
    if report is not None:
        lines.append(line(Line.REPORT, path=report))
    return "\n".join(map(inert_line, lines))


@contextmanager
def _folder() -> Iterator[tuple[Path, bool]]:
    """Where the traces go, and whether they stay there."""
    kept = os.environ.get(KEPT)
    if kept:
        folder = Path(kept) / _test_name()
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier session
        folder.mkdir(parents=True)
        yield folder, True
        return
    with tempfile.TemporaryDirectory(prefix="ttrace-", ignore_cleanup_errors=True) as made:
        yield Path(made), False


def _write_report(result: CheckResult, folder: Path | None) -> Path | None:
    """For failures always, for others where a folder was asked for."""
    html = os.environ.get(PAGES)
    if html:
        path = Path(html) / f"{_test_name()}.html"
    elif folder is not None:
        path = folder / "report.html"
    elif result.outcome is not Outcome.EQUIVALENT:
        path = _DEFAULT / f"{_test_name()}.html"
    else:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    result.write_html(path)
    return path


def _test_name() -> str:
    """tests/test_mlp.py::test_tp[4] (call) -> test_mlp.test_tp-4; pytest says which test runs."""
    current = os.environ.get("PYTEST_CURRENT_TEST", "equivalence").rsplit(" ", 1)[0]
    file, _, test = current.partition("::")  # a parameter of a test may have slashes, too
    name = f"{file.rsplit('/', 1)[-1]}::{test}".replace(".py::", ".")
    plain = re.sub(r"[^\w.]+", "-", name).strip("-.")
    return plain.encode()[:_LONGEST].decode(errors="ignore") or "equivalence"
