"""What the runs of an experiment record: all values, fingerprints of them, or what is needed.

    full          every run records values
    fingerprint   every run records fingerprints; no isolated runs, which need values
    auto          fingerprints first; where it isolates values, of the blocks that are suspected

Enters: results. Leaves: the blocks of which isolated runs record values. Runs are made elsewhere.
"""

from __future__ import annotations

from enum import StrEnum

from ttrace.core.finding import Topic
from ttrace.core.ids import block_of, blocks_of, is_inside
from ttrace.core.results import CheckResult
from ttrace.errors import UsageError
from ttrace.trace.fingerprint import NAME


class Capture(StrEnum):
    """What runs record."""

    FULL = "full"
    FINGERPRINT = "fingerprint"
    AUTO = "auto"

    @property
    def payload(self) -> str | None:
        """The form in which the runs of a plain comparison are recorded."""
        return None if self is Capture.FULL else NAME


def as_capture(name: str) -> Capture:
    """The capture of this name; UsageError where there is none."""
    try:
        return Capture(name)
    except ValueError:
        raise UsageError(f"--capture must be {', '.join(Capture)}, found {name!r}") from None


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
    found = set()
    for module in {m for culprit in isolated.culprits for m in culprit.blame.modules}:
        if module in blocks and not is_inside(module, inside):
            beside = {path for path in paths if path and not block_of(path, blocks)}
            found |= {module} if module else beside - blocks
    for note in isolated.notes:
        if note.topic is Topic.OTHER_RECIPE:
            found |= {block_of(module, blocks) or module for module in note.modules if module}
    return tuple(sorted(found - set(inside)))
