"""Models that are sharded or split over a mesh, by torch and by hand."""

from __future__ import annotations

from zoo.programs.program import Edit, Program, Run, Wrong

_STYLE = "sharded models"


def _on(ranks: int, name: str, script: str, *edits: Edit) -> Program:
    return Program(
        name=name,
        style=_STYLE,
        reference=Run(script, edits=edits),
        candidate=Run(script, ranks=ranks, edits=edits),
        steps=2,
    )


PROGRAMS = (
    _on(2, "fsdp1", "fsdp1"),
    _on(2, "fsdp1-flat", "fsdp1", Edit("        use_orig_params=True,\n", "")),
    _on(2, "fsdp2", "fsdp2"),
    _on(4, "ddp-over-tp", "ddp_over_tp"),
    _on(2, "ring-keys", "ring_keys"),
    _on(2, "zero-by-hand", "zero_by_hand"),
)

WRONG: tuple[Wrong, ...] = ()
