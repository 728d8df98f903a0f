"""The command that asks what high precision would change: whatif."""

from __future__ import annotations

from typing import Annotated

import typer

from ttrace.cli.options import (
    Candidate,
    CaptureName,
    Json,
    Out,
    QueueTimeout,
    Reference,
    RunsElsewhere,
    RunToEnd,
    Skip,
    Steps,
    Stop,
    Timeout,
)
from ttrace.cli.screen import say, stamped_folder, write_json
from ttrace.cli.telling import telling

_Patterns = Annotated[
    list[str],
    typer.Option(
        "--high-precision",
        metavar="PATTERN",
        help="Modules of the candidate, as 'layers.*.feed_forward.*'; repeatable.",
    ),
]
_By = Annotated[
    str, typer.Option("--by", metavar="layer|module", help="Which of them make a group.")
]


def whatif(
    reference: Reference,
    candidate: Candidate,
    high_precision: _Patterns,
    by: _By = "layer",
    out: Out = None,
    steps: Steps = 1,
    skip: Skip = 0,
    run_to_end: RunToEnd = False,  # noqa: FBT002
    timeout: Timeout = 1800.0,
    elsewhere: RunsElsewhere = None,
    queue_timeout: QueueTimeout = 3600.0,
    stop: Stop = None,
    capture: CaptureName = "full",
    json_file: Json = None,
) -> None:
    """Run the candidate with groups of modules in high precision: which carries the loss gap?"""
    from ttrace.lab.local import LocalExecutor
    from ttrace.lab.run import Elsewhere
    from ttrace.lab.whatif import whatif as ask
    from ttrace.report.whatif import whatif_json, whatif_lines

    with telling(LocalExecutor()) as told:
        found = ask(
            reference,
            candidate,
            high_precision,
            out=out or stamped_folder("whatif"),
            by=by,
            steps=steps,
            skip=skip,
            run_to_end=run_to_end,
            timeout_seconds=timeout,
            elsewhere=Elsewhere(asked=elsewhere, queue_seconds=queue_timeout, stop=stop),
            execute=told,
            progress=told.progress,
            capture=capture,
        )
    for line in whatif_lines(found):
        say(line, stderr=json_file == "-")
    write_json(json_file, whatif_json(found))
