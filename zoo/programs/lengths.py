"""Batches whose samples are not of one size: padded, packed one after the other, or graphs."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Wrong, on_ranks

_STYLE = "samples of many sizes"

PROGRAMS = (
    on_ranks("padded-lm", _STYLE, "padded_lm"),
    on_ranks("packed-documents", _STYLE, "packed_documents"),
    on_ranks("graph-net", _STYLE, "graph_net"),
)

WRONG = (
    Wrong(
        name="padded-lm/mean-of-means",
        program="padded-lm",
        title="every rank divides by the number of its own tokens",
        edits=(Edit("for text in texts)", "for text in mine) * world"),),
        expected=(Blame.at(Stage.LOSS, Phase.FORWARD),),
    ),
    Wrong(
        name="packed-documents/across",
        program="packed-documents",
        title="attention does not stop where a document ends",
        edits=(Edit("in pairwise(bounds.tolist())", "in [(0, len(x))]"),),
        expected=(Blame.of("attention", phase=Phase.FORWARD),),
    ),
    Wrong(
        name="packed-documents/positions",
        program="packed-documents",
        title="positions go on from one document to the next",
        edits=(
            Edit(
                "torch.cat([torch.arange(len(text) - 1) for text in mine])",
                "torch.arange(len(ids)) % 16",
            ),
        ),
        expected=(Blame.at(Stage.MODEL_INPUT, Phase.INPUTS),),
    ),
    Wrong(
        name="graph-net/other-end",
        program="graph-net",
        title="messages are added to the node that sent them",
        edits=(Edit("index_add(0, target, messages)", "index_add(0, source, messages)"),),
        expected=(
            Blame.of("first", phase=Phase.FORWARD),
            Blame.of("second", phase=Phase.FORWARD),
        ),
    ),
    Wrong(
        name="graph-net/no-offset",
        program="graph-net",
        title="edges of the second graph point at nodes of the first",
        edits=(Edit("[found + start for", "[found for"),),
        expected=(Blame.at(Stage.MODEL_INPUT, Phase.INPUTS),),
    ),
)
