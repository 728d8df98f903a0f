"""A diff as a series of runs: reference, candidate, perturbed references, isolated ones.

    FOLDER/reference                the reference
           candidate                the run to test
           perturbed-1 ...          the reference with noise: how much rounding explains; five
                                    of them where the comparison is borderline
           repeated                 the reference once more, where that is asked for
           in-blocks/               reference and perturbed ones once more, where the candidate
                                    quantises fewer samples at once (in_blocks.py)
           isolation/reference      the reference with taps
           isolation/plans/         what each rank overwrites its values with
           isolation/perturbed-1    the isolated reference with noise
           isolation/candidate      the isolated candidate
           isolation/kept           the same where some modules keep their own values inside, and
                                    whether an error inside them would show
           isolation/coarse/        the same with fewer boundaries, where one of them died
           isolation/further/       the same inside of further blocks (captured.py)

Enters: the work of both sides. Leaves: results, and all traces in one folder. It must not know how
work is run; executors do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttrace.core.finding import Topic
from ttrace.core.results import CheckResult, Outcome, Strength
from ttrace.errors import CommandFailed
from ttrace.lab.captured import Capture
from ttrace.lab.conclusion import localized, stands_without
from ttrace.lab.in_blocks import closest, cut_file_of
from ttrace.lab.isolation import Isolation
from ttrace.lab.noisy import Noisy, devices_differ
from ttrace.lab.series import Series


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(Series):
    """The runs that tell whether two sides are equivalent, and if not, why."""

    def diff(self) -> CheckResult:
        """Compare; isolated runs say why that fails, and decide what it cannot."""
        result = self.compare()
        if self.capture is Capture.FINGERPRINT or not _is_open(result):
            return result
        try:
            isolation = self.isolate(result)
        except CommandFailed as error:
            return stands_without(result, error)
        return localized(result, isolation, strict=self.strict)

    def compare(self) -> CheckResult:
        """Run both sides and the perturbed references, and compare what they recorded."""
        repeats = int(self.repeats_reference)
        after_it = self.perturbed_runs + repeats
        how: dict[str, Any] = {"payload": self.capture.payload}
        reference = self.run("reference", self.reference, then=1 + after_it, **how)
        candidate = self.run("candidate", self.candidate, then=after_it, **how)
        noisy = Noisy("perturbed", other_kernels=devices_differ(reference, candidate), recorded=how)
        perturbed, lost = self._perturbed_or_why(noisy, then=repeats)
        repeated = self.run("repeated", self.reference, **how) if repeats else None
        result = self.checked(reference, candidate, perturbed, noisy, repeated)
        if lost is not None:
            return stands_without(result, lost)
        return closest(self, result, noisy)

    def _perturbed_or_why(
        self, noisy: Noisy, *, then: int
    ) -> tuple[list[Path], CommandFailed | None]:
        """None, where one of them did not end well: much can be said without them."""
        try:
            return self.perturbed(noisy, then=then), None
        except CommandFailed as error:
            return [], error

    def isolate(
        self, plain: CheckResult | None = None, *, candidate: Path | None = None
    ) -> CheckResult:
        """Run the candidate with every module's input replaced by the reference's.

        `plain` is the comparison, where it has been made already: what it finds right tells what
        may be harmless. `candidate` is a plain trace of it, without one.
        """
        if plain is not None:
            candidate = Path(plain.candidate)
        if candidate is None:
            candidate = self.run("candidate", self.candidate, then=self.perturbed_runs + 2)
        runs = replace(self, blocks=None if plain is None else cut_file_of(plain))
        return Isolation(runs, candidate, plain).result()


def _is_open(result: CheckResult) -> bool:
    """Whether isolated runs have something to say.

    Where modules quantise, rounding flips codes, and flips grow from layer to layer until a layer
    that was not quantised at all lies within what they explain: there a pass says little.
    """
    if result.outcome is Outcome.EQUIVALENT:
        quantises = any(note.topic is Topic.CODES_FLIP for note in result.notes)
        return result.strength is Strength.BORDERLINE or quantises
    return result.outcome is Outcome.NOT_EQUIVALENT
