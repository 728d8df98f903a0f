"""Everything TTrace raises on purpose.

    TTraceError                 caught at the command line: message on stderr, exit code 3
    |-- LayoutError             a layout that cannot be: negative runs, wrong number of dims
    |-- UsageError              wrong call of the API or of the command line
    |-- NotEquivalent           what result.raise_for_outcome() raises; in core/results.py
    |
    |                           exit code 2, could not decide:
    |-- CannotCompare           two traces with nothing in common, or different step counts, or
    |                           values of which only fingerprints were recorded
    |-- CommandFailed           a traced run ended with an error or ran past its time limit
    |-- WorkerLost              processes that measure died, again and again
    `-- TraceError              a trace on disk cannot be used
        |-- TraceNotFound       no trace at that path
        |-- UnsupportedTrace    written in another version, or a foreign format
        `-- CorruptTrace        bytes differ from what was written, or the structure is broken

A mismatch between two runs is a result; it is an exception only for those who ask for one.
"""

from ttrace.text import inert_line


class TTraceError(Exception):
    """What was found, what was expected, and what to do next; each argument is a line.

    What a message quotes cannot act where it is printed, nor begin a line of its own.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)

    def __str__(self) -> str:
        return "\n".join(map(inert_line, self.args))


class TraceError(TTraceError):
    """A trace on disk cannot be used."""


class TraceNotFound(TraceError):
    """There is no trace at this path."""


class UnsupportedTrace(TraceError):
    """The trace was written in another version, or a foreign format."""


class CorruptTrace(TraceError):
    """Bytes on disk differ from what was written."""


class LayoutError(TTraceError):
    """A layout that cannot be."""


class CannotCompare(TTraceError):
    """The two traces have nothing that could be compared."""


class CommandFailed(TTraceError):
    """A traced run failed or ran past its time limit; its message ends with lines of a log."""

    def __init__(self, *lines: str) -> None:
        super().__init__(*(part for text in lines for part in text.expandtabs().split("\n")))


class WorkerLost(TTraceError):
    """Processes that measure died, one after the other, over the same tensors."""


class UsageError(TTraceError):
    """A call that cannot be carried out as written."""
