"""What if they computed in high precision: the candidate again, one group of modules at a time.

    FOLDER/reference        the reference
           candidate        the candidate as it is
           high-all         the candidate, with all modules that match in high precision
           high-layers.1    with those of one group

Which modules quantise something is known when all of them were asked not to. Enters: the work of
both sides, and patterns of module paths. Leaves: how much of the gap each group carries.
"""

from __future__ import annotations

import glob
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ttrace.analysis.check import check
from ttrace.analysis.reading import Beside, reading_of
from ttrace.analysis.work import Progress
from ttrace.core.ids import block_of, blocks_of, display_module, distinct
from ttrace.core.quantised import Undone
from ttrace.core.whatif import PreciseGroup, WhatIf
from ttrace.errors import CannotCompare, UsageError
from ttrace.lab.launch import LocalExecutor, prepare_folder
from ttrace.lab.run import Executor, Work
from ttrace.lab.series import Series
from ttrace.trace.reader import Trace
from ttrace.trace.store import local_path

_ALL = "all"


class By(StrEnum):
    """Which modules make a group."""

    LAYER = "layer"
    MODULE = "module"


def whatif(
    reference: Work,
    candidate: Work,
    high_precision: Sequence[str],
    *,
    out: Path | str,
    by: str = By.LAYER,
    execute: Executor | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> WhatIf:
    """Run the candidate with the modules of these patterns in high precision, group by group.

    `high_precision` are patterns of module paths, as "layers.*.feed_forward"; a group has those of
    one layer, or is one module. A side is what `diff` takes, and so are `options`, those of
    `RunOptions` and `capture`; the last of `steps` is looked at.
    CannotCompare where none of the modules quantises anything that can be undone.
    """
    if by not in list(By):
        raise UsageError(f"--by must be {' or '.join(By)}, found {by!r}")
    if not high_precision:
        raise UsageError("no pattern was given: expected one of module paths, such as 'layers.*'")
    series = Series(
        reference=reference,
        candidate=candidate,
        folder=prepare_folder(local_path(out)),
        execute=execute or LocalExecutor(),
        progress=progress,
        **options,
    )
    return _WhatIf(series, tuple(high_precision), By(by)).result()


@dataclass(frozen=True, slots=True)
class _WhatIf:
    series: Series
    patterns: tuple[str, ...]
    by: By

    def result(self) -> WhatIf:
        series = self.series
        how = {"payload": series.capture.payload}
        reference = series.run("reference", series.reference, then=2, **how)
        candidate = series.run("candidate", series.candidate, then=1, **how)
        as_it_is = self._beside(reference, candidate)
        together, found = self._group(reference, _ALL, self.patterns)
        groups = [
            self._group(reference, name, modules, then=then)[0]
            for then, name, modules in self._named(candidate, found)
        ]
        made = WhatIf(
            patterns=self.patterns,
            reference_loss=as_it_is.loss,
            reference_grad_norm=as_it_is.grad_norm,
            gradient_norm=as_it_is.gradient_norm,
            loss_dtype=as_it_is.loss_dtype,
            loss_eps=as_it_is.loss_eps,
            candidate=as_it_is.reading,
            together=together,
            groups=tuple(groups),
        )
        return sorted_by_share(made)

    def _group(
        self, reference: Path, name: str, patterns: tuple[str, ...], then: int = 0
    ) -> tuple[PreciseGroup, Mapping[str, Undone]]:
        """Make the run; also what was undone in it, by module."""
        series = self.series
        folder = series.run(
            f"high-{_file_name(name)}",
            series.candidate,
            then=then,
            payload=series.capture.payload,
            high_precision=patterns,
        )
        found = undone_in(folder)
        if not any(each.changed for each in found.values()):
            raise CannotCompare(*self._nothing(folder, found.values()))
        group = PreciseGroup(
            name=name,
            modules=tuple(path for path, each in found.items() if each.changed),
            changed=sum(each.changed for each in found.values()),
            left=tuple(dict.fromkeys(why for each in found.values() for why in each.left)),
            reading=self._beside(reference, folder).reading,
        )
        return group, found

    def _named(
        self, candidate: Path, found: Mapping[str, Undone]
    ) -> list[tuple[int, str, tuple[str, ...]]]:
        """Groups in the order of the model: how many follow, the name, the modules as patterns."""
        paths = [path for path, each in found.items() if each.changed]
        blocks = blocks_of(_modules(candidate))
        groups = defaultdict(list)
        for path in paths:
            key = path if self.by is By.MODULE else block_of(path, blocks)
            groups[key].append(glob.escape(path))
        named = distinct((display_module(key), tuple(groups[key])) for key in groups)
        return [(len(groups) - 1 - nth, *each) for nth, each in enumerate(named)]

    def _beside(self, reference: Path, run: Path) -> Beside:
        return reading_of(check(reference, run, progress=self.series.progress))

    def _nothing(self, folder: Path, found: Iterable[Undone]) -> list[str]:
        """Why there is no answer."""
        paths = _modules(folder)
        named = ", ".join(self.patterns)
        if not any(fnmatchcase(path, pattern) for path in paths for pattern in self.patterns):
            some = ", ".join(display_module(path) for path in paths[:8])
            return [f"no module matches {named}; the candidate has {some} ..."]
        left = sorted({why for each in found for why in each.left})
        if left:
            return [f"nothing that {named} quantises could be undone: {'; '.join(left)}"]
        why = "is quantised by a cast, a product of codes or rounding that was seen"
        return [f"nothing in {named} {why}: nothing is known of what high precision would change"]


def sorted_by_share(found: WhatIf) -> WhatIf:
    """Who carries most comes first; of equals, who comes first in the model."""
    groups = sorted(found.groups, key=found.gradient_closed, reverse=True)
    return replace(found, groups=tuple(groups))


def undone_in(folder: Path) -> dict[str, Undone]:
    """What the ranks of a run undid, by module in the order of the model."""
    ranks = Trace.open(folder).ranks.values()
    every = [each for rank in ranks if rank.summary for each in rank.summary.undone]
    order = {path: nth for nth, path in enumerate(_modules(folder))}
    merged: dict[str, Undone] = {}
    for each in sorted(every, key=lambda undone: order.get(undone.module, len(order))):
        known = merged.get(each.module, Undone(module=each.module))
        merged[each.module] = Undone(
            module=each.module,
            changed=known.changed + each.changed,
            left=tuple(dict.fromkeys((*known.left, *each.left))),
        )
    return merged


def _modules(folder: Path) -> list[str]:
    """Of all ranks: pipeline stages have different ones."""
    ranks = Trace.open(folder).ranks.values()
    return list(dict.fromkeys(module.path for rank in ranks for module in rank.info.modules))


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.]+", "_", name)
