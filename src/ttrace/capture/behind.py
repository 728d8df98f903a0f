"""Behind a run: what is left of a step when it ends is written while the next one runs.

Enters: the threads and items of a step, all of which were put. Leaves: that step in the trace, and
what was lost of it. It must not know what comes after it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ttrace.capture.guard import in_background
from ttrace.capture.items import Unwritten
from ttrace.capture.writers import Writers

# Chosen: Python lets a thread run for 5 ms before another may, in which a GPU runs dry; and a sleep
# as short as a system makes it.
_BUSY_S = 3e-4
_PAUSE_S = 5e-5


class Pauses:
    """Lets the run go first; to be called after each little piece of work."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._since > _BUSY_S:
            time.sleep(_PAUSE_S)
            self._since = time.perf_counter()


class Behind:
    """One step; `then` is told whether anything of it was lost."""

    def __init__(self, writers: Writers, then: Callable[[bool], None]) -> None:
        self._writers = writers
        self._then = then
        self._thread: threading.Thread | None = None
        self.is_done = False  # and all lines that come next may follow

    @property
    def is_broken(self) -> bool:
        return self._writers.is_broken

    @property
    def lost(self) -> list[Unwritten]:
        return self._writers.lost

    def start(self) -> bool:
        """Whether a thread does it: a process that ends starts no more."""
        thread = threading.Thread(
            target=in_background,
            args=(lambda: self.run(Pauses()), self._fail),
            name="ttrace-writer",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def run(self, pause: Callable[[], None] | None = None) -> None:
        self._writers.end(pause)
        self._then(bool(self.lost) or self.is_broken)
        self.is_done = not self.is_broken

    def join(self) -> None:
        """Return when it is written, and no thread is left, also after a fault on the way."""
        if self._thread is not None:
            self._thread.join()
        self._writers.end()

    def _fail(self, error: Exception) -> None:
        self.lost.append(Unwritten("the end of a step (recording stops here)", error))
        self._writers.is_broken = True
