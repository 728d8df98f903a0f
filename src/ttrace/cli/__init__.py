"""The command line: demo, doctor, diff, isolate, whatif, run, watch, plan, check, report,
compare-reports, accept, show, export, skill.

Exit codes, of all commands:

    0    equivalent, or done
    1    not equivalent
    2    could not decide: undecided, traces that cannot be read or compared, a run that failed, or
         that has nothing to watch
    3    wrong usage, or a fault of our own
    129, 130, 143    hung up, interrupted, told to end
"""

from __future__ import annotations

import io
import signal
import sys
import traceback
from typing import NoReturn

import typer

from ttrace.cli.advice import doctor, skill
from ttrace.cli.results import accept, check, compare_reports, report
from ttrace.cli.runs import demo, diff, isolate, run
from ttrace.cli.screen import say, say_error, take_any_text
from ttrace.cli.traces import export, plan, show
from ttrace.cli.watch import watch
from ttrace.cli.whatif import whatif
from ttrace.errors import CannotCompare, CommandFailed, TraceError, TTraceError, WorkerLost

_UNDECIDED = 2
_FAULT = 3
# Click's UsageError, of which typer has a copy that it gives no public name.
_BadUsage: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    help="Finds silent bugs in distributed training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# In the order in which --help shows them; a short help is one that its 80 columns do not cut.
app.command(short_help="A small Llama, one process against 4, with a planted bug.")(demo)
app.command(
    short_help="What TTrace recognises and sees of a command's step.",
    context_settings={"ignore_unknown_options": True},
)(doctor)
app.command(short_help="Run reference and candidate with tracing on, then compare.")(diff)
app.command(short_help="The same with every module isolated: smaller errors show.")(isolate)
app.command(short_help="Modules in high precision: which carry the loss gap.")(whatif)
app.command(context_settings={"ignore_unknown_options": True})(run)
app.command(
    short_help="Run to the end, and say when replicas differ.",
    context_settings={"ignore_unknown_options": True},
)(watch)
app.command(short_help="The plans by which a run is isolated.")(plan)
app.command()(check)
app.command(short_help="HTML, JUnit, Markdown and other forms of a result.")(report)
app.command(short_help="What a fix changed, of two results.")(compare_reports)
app.command(short_help="Add a failure of a result to the list of what may differ.")(accept)
app.command(short_help="What is in a trace, or one tensor of it.")(show)
app.command(short_help="One logical tensor as a safetensors file.")(export)
app.command(short_help="How to use TTrace, for an agent.")(skill)


def main() -> NoReturn:
    """Entry point: every error that was foreseen is one message and an exit code."""
    # Not the default, which ends this process before the traced command has ended.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, _leave)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as other tools do in a pipe
    take_any_text()
    sys.exit(_call())


def _leave(number: int, _: object) -> NoReturn:
    # A closed terminal says so several times, and nobody waits for the answer.
    for further in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(further, signal.SIG_IGN)
    sys.exit(128 + number)


def _call() -> int:
    try:
        # By itself it would end the process, after bad usage with the code of an open question.
        return app(prog_name="ttrace", standalone_mode=False) or 0
    except _BadUsage as error:
        shown = io.StringIO()
        error.show(shown)  # type: ignore[attr-defined]
        say(*shown.getvalue().rstrip("\n").split("\n"), stderr=True)
    except (TraceError, CannotCompare, CommandFailed, WorkerLost) as error:
        say_error(error)
        return _UNDECIDED
    except (TTraceError, OSError) as error:
        say_error(error)
    except Exception:  # noqa: BLE001  (Python's own exit code would say: not equivalent)
        say(*traceback.format_exc().rstrip("\n").split("\n"), stderr=True)
    return _FAULT
