"""What recording takes of a step: time in the run's own threads, and bytes.

Enters: what was spent, as it is. Leaves: the cost of the last step. A step may be written while the
next one runs; its bytes are those by which the trace grew since the one before it was written.
"""

from __future__ import annotations

from dataclasses import dataclass

from ttrace.capture.outbox import Outbox
from ttrace.trace.writer import TraceWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Of one step."""

    recording_seconds: float = 0.0  # in the threads of the run: hooks, and the end of the step
    waited_seconds: float = 0.0  # of these, for memory that was not written yet
    bytes_written: int = 0


class Costs:
    """Adds up `seconds`, which whoever records tells."""

    def __init__(self, outbox: Outbox, writer: TraceWriter) -> None:
        self.seconds = 0.0  # in this step
        self._outbox = outbox
        self._writer = writer
        self._waited_before = 0.0
        self._bytes_before = writer.size_bytes
        self._bytes = 0

    def begin(self) -> None:
        self.seconds, self._waited_before = 0.0, self._outbox.waited_seconds

    def end(self) -> None:
        """All of a step is in the trace."""
        size_bytes = self._writer.size_bytes
        self._bytes, self._bytes_before = size_bytes - self._bytes_before, size_bytes

    @property
    def of_step(self) -> StepCost:
        return StepCost(
            recording_seconds=self.seconds,
            waited_seconds=self._outbox.waited_seconds - self._waited_before,
            bytes_written=self._bytes,
        )
