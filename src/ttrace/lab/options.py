"""What people may ask of runs and comparisons: every option once, with what is said of it.

The command line makes a flag of each field (cli/options.py); `ttrace.diff`, `ttrace.whatif` and
`assert_equivalent` take the names of the fields. So none misses an option by accident.

    RunOptions           how a command is run and recorded
    ComparisonOptions    these, and how two sides are compared
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ttrace.analysis.accept import AcceptList, acceptances
from ttrace.errors import UsageError
from ttrace.trace.fingerprint import NAME


@dataclass(frozen=True, slots=True)
class Flag:
    """What a command line needs to know of an option, beside the name and default of its field."""

    help: str
    name: str = ""  # where people type another one than the field's
    takes: Any = None  # what they type, where the default does not tell
    least: float | None = None
    metavar: str | None = None


def option(said: str, *, default: Any, **how: Any) -> Any:
    """A field of options."""
    return field(default=default, metadata={"flag": Flag(said, **how)})


class Capture(StrEnum):
    """What runs record."""

    FULL = "full"
    FINGERPRINT = "fingerprint"
    AUTO = "auto"

    @property
    def payload(self) -> str | None:
        """The form in which the runs of a plain comparison are recorded."""
        return None if self is Capture.FULL else NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Ranks that do not run below the command which starts them: those of a job, say.

    `asked`: whether they do; None: the command tells. `queue_seconds`: how long it may take until
    the first of them begins. `stop`: a shell command that ends them; it reads what the run's
    command wrote.
    """

    asked: bool | None = option(
        "Ranks run elsewhere, and the command may end before them: wait for their traces. Without "
        "this, sbatch, kubectl apply and ray job submit --no-wait are recognised.",
        default=None,
        name="elsewhere",
        takes=bool | None,
    )
    queue_seconds: float = option(
        "Seconds after which a rank elsewhere must have begun.",
        default=3600.0,
        name="queue-timeout",
        least=0.1,
    )
    stop: str | None = option(
        "Shell command that ends what runs elsewhere; it reads what the command wrote.",
        default=None,
        takes=str | None,
        metavar="COMMAND",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a command is run and recorded."""

    steps: int = option("How many training steps to record.", default=1, least=1)
    skip: int = option("How many steps to let pass before those.", default=0, least=0)
    every: int = option("Record every n-th step of those that follow.", default=1, least=1)
    run_to_end: bool = option("Do not stop a command when its steps are recorded.", default=False)
    timeout_seconds: float = option(
        "Seconds after which a command is stopped.", default=1800.0, name="timeout", least=0.1
    )
    elsewhere: Elsewhere = Elsewhere()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOptions(RunOptions):
    """How both sides are run, how often the reference, and what counts as a failure."""

    perturbed_runs: int = option("How many perturbed references to run.", default=1, least=1)
    split_reductions: int = option(
        "Perturbed references add matmuls in so many rounded parts, as tensor-parallel ranks do: "
        "raise it where correct ones are further away than noise explains.",
        default=1,
        least=1,
    )
    repeat_reference: bool = option(
        "Run the reference twice, to see whether it is deterministic.", default=False
    )
    strict: bool = option(
        "Fail also what is borderline, or differs inside a module without an effect.", default=False
    )
    capture: Capture = option(
        "What runs record: full, fingerprint, or auto (values only where it isolates).",
        default=Capture.FULL,
        takes=str,
        metavar="FORM",
    )
    accept: AcceptList = option(
        "TOML list of what may differ.", default=(), takes=Path | None, metavar="FILE"
    )

    def __post_init__(self) -> None:
        """Names and files become what they mean, so that a wrong one is refused before any run."""
        object.__setattr__(self, "capture", _capture(self.capture))
        object.__setattr__(self, "accept", acceptances(self.accept))


def _capture(name: str) -> Capture:
    try:
        return Capture(name)
    except ValueError:
        raise UsageError(f"--capture must be {', '.join(Capture)}, found {name!r}") from None
