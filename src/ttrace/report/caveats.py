"""Caveats: words for what narrows a verdict, leaves it open or is to be expected."""

from __future__ import annotations

from enum import StrEnum

from ttrace.core.blame import Expected
from ttrace.core.coverage import Lost, StepPart

PARTS = {
    StepPart.FORWARD: "forward",
    StepPart.BACKWARD: "backward",
    StepPart.REDUCTION: "reduction",
    StepPart.UPDATE: "update",
}

NOT_RECORDED = {
    StepPart.FORWARD: "no output was recorded",
    StepPart.BACKWARD: "no gradient was recorded",
    StepPart.REDUCTION: "no reduced gradient was recorded",
    StepPart.UPDATE: "no update was recorded",
}

LOST = {
    Lost.STEP: "UNDECIDED: nothing could be compared that a training step makes",
    Lost.REFERENCE: "UNDECIDED: nothing differs, but only the candidate has {parts}: there is "
    "nothing to compare it with",
    Lost.RECORDING: "UNDECIDED: nothing differs, but not everything could be recorded, first "
    "{fault}",
    Lost.PROCESS: "UNDECIDED: nothing differs, but not everything could be traced; the notes say "
    "what and why",
}


EXPECTED = {
    Expected.DROPOUT: "expected of dropout where each rank draws a mask of its own: compare with "
    "p=0 or eval(), or draw masks by their place in the whole tensor (ttrace.dropout_mask)",
    Expected.BATCH_STATISTICS: "expected in training, where statistics are of the part of the "
    "batch that a rank has: compare with torch.nn.SyncBatchNorm or eval(), or accept it",
    Expected.AUXILIARY_LOSS: "expected of an auxiliary loss that each rank computes from its own "
    "tokens: compute it over all of them, or accept it",
    Expected.COMPRESSED_REDUCTION: "expected where gradients are compressed before they are summed "
    "(a bf16 or fp16 communication hook): compare without it, or accept it",
}


class Caveat(StrEnum):
    """Pieces of what is said about how much a verdict covers."""

    IN_PARTS = "in_parts"
    PART_OF_IT = "part_of_it"
    CANDIDATE_ONLY = "candidate_only"
    COVERED = "covered"
    SOME = "some"
    ACCEPTED = "accepted"
    BEYOND_BOUND = "beyond_bound"
    ACCEPTS_NOTHING = "accepts_nothing"
    IS_ACCEPTED = "is_accepted"
    SEVERAL = "several"


CAVEATS = {
    Caveat.IN_PARTS: " in {parts}",
    Caveat.PART_OF_IT: "only {judged} of {expected:gradient} of parameters {judged:|has/have} a "
    "recorded {part}",
    Caveat.CANDIDATE_ONLY: "{count:module was/modules were} called by the candidate only",
    Caveat.COVERED: "judged: {parts}",
    Caveat.SOME: "{part} ({judged} of {expected})",
    Caveat.ACCEPTED: "accepted: {count:tensor} by {id}: {reason}",
    Caveat.BEYOND_BOUND: "not accepted: {count:tensor} of {id} {count:|is/are} beyond its bound of "
    "{bound} {count:|its/their} tolerance",
    Caveat.ACCEPTS_NOTHING: "the accept list has {id}, and no failure is called so: {reason}",
    Caveat.IS_ACCEPTED: "{count} of {total} accepted",
    Caveat.SEVERAL: "{pattern} ({count:place}: {places})",
}
