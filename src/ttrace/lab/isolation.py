"""The isolated runs of an experiment: every module starts from the reference's values.

What rounding does to a single module is measured on the reference under the same replacement, with
noise. Where a run dies of it, all are repeated with values given at the boundaries of blocks alone.
Where the plain comparison was one of fingerprints, values are given, and recorded, inside of the
blocks that it suspects; what is blamed as a whole then is looked into by further runs.

Enters: an experiment that can run things, a plain trace of the candidate, and the comparison, where
it was made. Leaves: the result of the isolated comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ttrace.analysis.check import check_isolated
from ttrace.analysis.effect import harmless, probes, right, settled, suspected
from ttrace.analysis.isolate import write_plans
from ttrace.core.enclosure import Enclosure
from ttrace.core.finding import Note, Topic
from ttrace.core.ids import block_of, blocks_of, is_inside
from ttrace.core.results import CheckResult
from ttrace.errors import CommandFailed
from ttrace.lab.options import Capture
from ttrace.lab.series import Noisy, Series, devices_differ, stands_without

Blocks = tuple[str, ...] | None  # inside of which values are given; None: everywhere


@dataclass(frozen=True, slots=True)
class Isolation:
    """What one candidate does when it is given the reference's values."""

    runs: Series
    candidate: Path  # a plain trace
    plain: CheckResult | None

    def result(self) -> CheckResult:
        """The isolated comparison, without what it finds to be harmless."""
        inside: Blocks = None
        if self.runs.capture is Capture.AUTO and self.plain is not None:
            inside = suspected_blocks(self.plain)
        try:
            isolated = self._isolated("isolation", inside)
            if inside is not None and (further := further_blocks(isolated, inside)):
                inside = (*inside, *further)
                isolated = self._isolated("isolation/further", inside)
        except CommandFailed as error:
            return self._coarsely(error)
        enclosures = () if self.runs.strict else suspected(self.plain, isolated)
        if not enclosures:
            return isolated
        try:
            return self._reconsidered(isolated, enclosures, inside)
        except CommandFailed as error:
            return stands_without(isolated, error)

    def _reconsidered(
        self, isolated: CheckResult, enclosures: Sequence[Enclosure], inside: Blocks
    ) -> CheckResult:
        """Once more with these modules as one segment each: is what they give right?

        Where it is, an error of the same size inside of them, in the reference, must show.
        """
        folder, tapped = "isolation/kept", Path(isolated.reference)
        kept = self._isolated(folder, inside, tapped=tapped, enclosures=enclosures)
        found = right(enclosures, kept, isolated)
        errors = probes(found, isolated, self.plain)
        if not errors:
            return settled(isolated, kept, enclosures, ())
        plans = self.runs.folder / folder / "plans" / "probe"
        write_plans(tapped, tapped, plans, enclosures=enclosures, probes=errors, inside=inside)
        how = self._recorded(inside)
        probed = check_isolated(
            tapped,
            self.runs.run(f"{folder}/probe", self.runs.reference, plan=plans, **how),
            plans=plans,
            perturbed=kept.perturbed,
            enclosures=enclosures,
            progress=self.runs.progress,
        )
        return settled(isolated, kept, enclosures, harmless(found, probed))

    def _coarsely(self, died: CommandFailed) -> CheckResult:
        """The same with fewer boundaries; where that dies, too, the first death is what is told."""
        try:
            result = self._isolated("isolation/coarse", ())
        except CommandFailed:
            raise died from None
        note = Note(topic=Topic.COARSER, text=str(died))
        return replace(result, notes=(*result.notes, note))

    def _isolated(
        self,
        name: str,
        inside: Blocks,
        *,
        tapped: Path | None = None,
        enclosures: Sequence[Enclosure] = (),
    ) -> CheckResult:
        runs = self.runs
        if tapped is None:
            how: dict[str, Any] = {"tap": True, "inside": inside}
            then = runs.perturbed_runs + 1
            tapped = runs.run(f"{name}/reference", runs.reference, then=then, **how)
        plans = runs.folder / name / "plans"
        planned = partial(write_plans, tapped, enclosures=enclosures, inside=inside)
        planned(tapped, plans / "reference")
        planned(self.candidate, plans / "candidate")
        how = self._recorded(inside)
        noisy = Noisy(
            f"{name}/perturbed",
            plan=plans / "reference",
            other_kernels=devices_differ(tapped, self.candidate),
            recorded=how,
        )
        perturbed = runs.perturbed(noisy, then=1)
        isolated = runs.run(f"{name}/candidate", runs.candidate, plan=plans / "candidate", **how)

        def compared(noise: Sequence[Path]) -> CheckResult:
            return check_isolated(
                tapped,
                isolated,
                plans=plans / "candidate",
                perturbed=noise,
                enclosures=enclosures,
                progress=runs.progress,
                accept=runs.accept,
            )

        return runs.decided(compared, perturbed, noisy)

    def _recorded(self, inside: Blocks) -> dict[str, Any]:
        """What isolated runs record: values of what is suspected, else as plain ones do."""
        payload = self.runs.capture.payload
        return {} if inside is None or payload is None else {"payload": payload, "inside": inside}


def suspected_blocks(plain: CheckResult) -> tuple[str, ...]:
    """Where a comparison of fingerprints points to: blocks, and modules that lie in none."""
    named = {module for culprit in plain.culprits for module in culprit.blame.modules}
    named |= {id_.module for culprit in plain.culprits for id_ in culprit.evidence}
    blocks = blocks_of(module.path for module in plain.modules)
    return tuple(sorted({block_of(module, blocks) or module for module in named} - {""}))


def further_blocks(isolated: CheckResult, inside: tuple[str, ...]) -> tuple[str, ...]:
    """What an isolated run blames as a whole, since it was given no values inside of it.

    And where modules quantise otherwise: all of a block hides what that does to one of them.
    """
    paths = [module.path for module in isolated.modules]
    blocks = blocks_of(paths)
    blamed = {module for culprit in isolated.culprits for module in culprit.blame.modules}
    whole = {block for block in blamed & blocks if not is_inside(block, inside)}
    # blamed {"", layers.1, layers.1.w1}, inside {layers.0}: whole {"", layers.1}, and for the model
    # what of it lies in no other block: embed, layers.1
    if "" in whole:
        whole |= {path for path in paths if not block_of(path, blocks)} - blocks
    recipes = [note for note in isolated.notes if note.topic is Topic.OTHER_RECIPE]
    other = {
        block_of(module, blocks) or module for note in recipes for module in note.modules if module
    }
    return tuple(sorted((whole | other) - {"", *inside}))
