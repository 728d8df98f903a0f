"""The only place where verdicts are written: from what rules say to what is said of a tensor.

    accusations    PASS by its tolerance (0), CONFLICT of replicas (50), MISMATCH of tokens (70)
    stands         MISMATCH, with the evidence of all three
    excuses        HARMLESS over {CONFLICT}: not about what stands
    verdict        MISMATCH

By weight, and not by order: shuffling the rules changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ttrace.analysis.judge.rulings import Accusation, Excuse, Exhibit
from ttrace.core.finding import Note, Specifics, Topic
from ttrace.core.ids import TensorId
from ttrace.core.results import TensorResult, Verdict

# Of excuses that are about the same verdict the one that says most stands.
_OF_EXCUSES = (Verdict.PASS, Verdict.HARMLESS, Verdict.BORDERLINE, Verdict.ACCEPTED)


def weigh(
    exhibits: Mapping[TensorId, Exhibit], accusations: Iterable[Accusation]
) -> dict[TensorId, TensorResult]:
    """What stands against each tensor: the heaviest accusation, with the evidence of all."""
    by_id: dict[TensorId, list[Accusation]] = defaultdict(list)
    for accusation in accusations:
        by_id[accusation.id].append(accusation)
    return {id_: _standing(exhibit, by_id[id_]) for id_, exhibit in exhibits.items()}


def _standing(exhibit: Exhibit, accusations: Sequence[Accusation]) -> TensorResult:
    # Ties fall to the texts, so that the order in which rules were asked decides nothing.
    ordered = sorted(accusations, key=lambda each: (each.weight, each.verdict, each.finding or ""))
    stands = ordered[-1]
    judgements = (*exhibit.judgements, *(j for each in ordered for j in each.evidence))
    ratios = [judgement.ratio for judgement in judgements]
    ratios += [] if stands.ratio is None else [stands.ratio]
    alignment, pair = exhibit.alignment, exhibit.alignment.pair
    side = pair[0] if pair else alignment.candidate or alignment.reference
    stored = pair[1] if pair else side
    return TensorResult(
        id=exhibit.id,
        verdict=stands.verdict,
        order=exhibit.order,
        shape=() if side is None else side.shape,
        dtype="" if stored is None or not stored.pieces else stored.dtype,
        statistics=exhibit.statistics,
        tolerance=exhibit.tolerance,
        judgements=judgements,
        ratio=max(ratios, default=None),
        error_eps=exhibit.error_eps,
        ranks=stands.ranks,
        finding=stands.finding,
        specifics=_specifics(stands.specifics, exhibit),
    )


def _specifics(found: Specifics | None, exhibit: Exhibit) -> Specifics | None:
    if not exhibit.moved:
        return found
    allowed = exhibit.allowed_moves
    return replace(found or Specifics(), moved=exhibit.moved, allowed_moves=allowed)


def excuse(
    standing: Iterable[TensorResult], excuses: Iterable[Excuse]
) -> tuple[tuple[TensorResult, ...], tuple[Note, ...]]:
    """The verdicts, in which what is excused does not count, and notes of what was."""
    by_id: dict[TensorId, list[Excuse]] = defaultdict(list)
    for each in excuses:
        by_id[each.id].append(each)
    noted: dict[Topic, list[TensorId]] = defaultdict(list)
    results = []
    for result in standing:
        fitting = [e for e in by_id[result.id] if _fits(e, result)]
        best = min(fitting, key=lambda e: _OF_EXCUSES.index(e.verdict), default=None)
        if best is None:
            results.append(result)
            continue
        if best.topic is not None:
            noted[best.topic].append(result.id)
        finding = best.finding or result.finding
        results.append(replace(result, verdict=best.verdict, finding=finding))
    notes = tuple(Note(topic=t, count=len(ids), first=ids[0]) for t, ids in noted.items())
    return tuple(results), notes


def _fits(excuse_: Excuse, result: TensorResult) -> bool:
    return result.verdict in excuse_.over and result.severity <= excuse_.most
