"""Wording: text for people from the types of a result, with the sentences of catalogue/.

    Culprit             layers.1.feed_forward, backward
    Reason              its output is the first wrong tensor: 120,000x its tolerance
    Diagnosis           parts 0 and 1 of 2 of dim 1 are exchanged
    ranks               tp1 (ranks 1, 3): exactly the ranks with that coordinate
                        dp0 tp1, dp1 tp0 (ranks 1, 2): ranks that have nothing in common
                        rank 1: without a mesh

Enters: values of a CheckResult. Leaves: text. It fills sentences in and decides nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from ttrace.core.blame import Blame, Culprit, Diagnosis, Mistake, Phase, Reason, Stage
from ttrace.core.finding import Finding, Specifics
from ttrace.core.ids import Kind, TensorId, display_module
from ttrace.core.mesh import NO_MESH, Mesh
from ttrace.core.record import Difference, Owner
from ttrace.core.results import CheckResult, TensorResult, Verdict
from ttrace.core.statistics import Reading, Statistic
from ttrace.report.catalogue.culprits import EXPECTED, MISTAKES, PHASES, REASONS, STAGES
from ttrace.report.catalogue.sentences import Line
from ttrace.report.catalogue.tensors import FINDINGS, STATISTICS
from ttrace.report.numbers import exact_gain, filled, times
from ttrace.text import list_first, list_ranks

_MOST_NAMES = 4  # chosen: a list of more is read by number
_MOST_PARTS = 8  # chosen: enough to see the order
_MOST_FACTORS = 4  # chosen
_MOST_PLACES = 3  # chosen: the first show what the others are

_WITHOUT_SIZE = (Statistic.GRAIN, Statistic.COINCIDENCE)

Tensors = Mapping[TensorId, TensorResult]

# What a size of a diagnosis is called that is no mesh axis.
_SIZES = {"ranks": Line.NUMBER, "microbatches": Line.NUMBER}
# The phase that the name of a stage says already.
_SAID = {
    Stage.MODEL_INPUT: Phase.INPUTS,
    Stage.INITIAL_PARAMETERS: Phase.PARAMETERS,
    Stage.BACKWARD: Phase.BACKWARD,
    Stage.GRADIENT_ACCUMULATION: Phase.GRADIENT_ACCUMULATION,
    Stage.GRADIENT_REDUCTION: Phase.GRADIENT_REDUCTION,
}


def mesh_of(result: CheckResult) -> Mesh:
    """The candidate's."""
    found = next((run for run in result.runs if run.role == "candidate"), None)
    return NO_MESH if found is None else found.placed


def listed_ranks(ranks: Sequence[int], mesh: Mesh) -> str:
    """tp1 (ranks 1, 3); every rank; long lists are cut."""
    if len(ranks) > 1 and len(ranks) == len(mesh.coordinates) and mesh.naming:
        return Line.EVERY_RANK.value
    numbers = list_ranks(ranks)
    names = _rank_names(ranks, mesh)
    return f"{names} ({numbers})" if names else numbers


def on_ranks(ranks: Sequence[int], mesh: Mesh) -> str:
    return Line.ON_RANKS.value.format(ranks=listed_ranks(ranks, mesh))


def _rank_names(ranks: Sequence[int], mesh: Mesh) -> str:
    """What the ranks have in common, or each by its name where they are few."""
    if common := mesh.common(ranks):
        return " ".join(common)
    names = [mesh.name(rank) for rank in ranks] if len(ranks) <= _MOST_NAMES else []
    return ", ".join(names) if all(names) else ""


def line(key: Line, **values: object) -> str:
    return filled(key.value, **values)


def place(culprit: Culprit) -> str:
    """layers.1.feed_forward, backward; a stage that says its phase stands alone."""
    return with_commas(where(culprit), phase(culprit.blame))


def where(culprit: Culprit) -> str:
    """The modules or the stage that is blamed; parameters are named where they are few."""
    of_parameters = culprit.reason in (Reason.OTHER_PARAMETERS, Reason.OTHER_SPLIT)
    if of_parameters and culprit.count == len(culprit.evidence):
        return _parameters(culprit.evidence)
    return blamed(culprit.blame)


def several(pattern: str, places: Sequence[str]) -> str:
    """layers.*.mlp (4 places: layers.0.mlp, layers.1.mlp, layers.2.mlp ...)"""
    shown = list_first(places, _MOST_PLACES)
    return line(Line.SEVERAL, pattern=pattern, count=len(places), places=shown)


def blamed(blame: Blame) -> str:
    if blame.stage is not None:
        return STAGES[blame.stage].words
    return " or ".join(map(display_module, blame.modules))


def phase(blame: Blame) -> str:
    """When in a step it is; empty where the stage says it."""
    is_said = blame.stage is not None and _SAID.get(blame.stage) is blame.phase
    return "" if is_said else PHASES[blame.phase].words


def reason(culprit: Culprit, tensors: Tensors, mesh: Mesh = NO_MESH) -> str:
    """Why it is blamed, and what kind of mistake it looks like where that is known."""
    words = plain_reason(culprit, tensors, mesh)
    if culprit.differences:
        words += f"; {other_numbers(culprit.differences, mesh)}"
    elif culprit.diagnosis is not None:
        words += f"; {diagnosis(culprit.diagnosis, mesh)}"
    return words if culprit.expected is None else f"{words}; {EXPECTED[culprit.expected].words}"


def plain_reason(culprit: Culprit, tensors: Tensors, mesh: Mesh) -> str:
    """Why it is blamed."""
    words = _reason(culprit, tensors, mesh)
    if culprit.steps and culprit.steps != (0,):
        words += line(Line.IN_STEPS, steps=", ".join(map(str, culprit.steps)))
    return words


def other_numbers(found: Sequence[Difference], mesh: Mesh = NO_MESH) -> str:
    """The first of every name; they say more than what a mistake looks like."""
    by_name: dict[str, list[Difference]] = {}
    for each in found:
        by_name.setdefault(each.name, []).append(each)
    said = []
    for first, *others in by_name.values():
        more = line(Line.AND_MORE, count=len(others)) if others else ""
        said.append(difference(first, mesh) + more)
    return "; ".join(said)


def difference(found: Difference, mesh: Mesh = NO_MESH) -> str:
    """lr is 0.0005, the reference's 0.00025, on rank 1"""
    of = ""
    if found.owner is Owner.MODULE:
        first = display_module(found.owned[0])
        others = len(found.owned) - 1
        of = f" of {first}" + (line(Line.AND_MORE, count=others) if others else "")
    return line(
        Line.OTHER_NUMBER,
        name=found.name,
        of=of,
        candidate=_numbers(found.candidate),
        reference=_numbers(found.reference),
        where=f", {on_ranks(found.ranks, mesh)}" if found.ranks else "",
    )


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def _reason(culprit: Culprit, tensors: Tensors, mesh: Mesh) -> str:
    evidence = culprit.evidence
    first = evidence[0] if evidence else None
    others = len(evidence) - 1
    reduced = first is not None and first.kind is Kind.REDUCED_GRAD
    return filled(
        REASONS[culprit.reason].words,
        count=culprit.count,
        total=culprit.total,
        factor=math.nan if culprit.factor is None else culprit.factor,
        why="" if first is None or first not in tensors else why(tensors[first], mesh),
        module="" if first is None else display_module(first.module),
        tensor="" if first is None else _tensor(first),
        names=_parameters(evidence),
        annotation="" if first is None else _annotation(first),
        slots=", ".join(dict.fromkeys(id_.slot for id_ in evidence)),
        more=line(Line.AND_MORE, count=others) if others > 0 else "",
        gradients=line(Line.REDUCED_GRADIENTS if reduced else Line.MAIN_GRADIENTS),
    )


def _parameters(ids: Sequence[TensorId]) -> str:
    return ", ".join(f"{display_module(id_.module)}.{id_.slot}" for id_ in ids)


def _tensor(id_: TensorId) -> str:
    """grad input of layers.1.feed_forward"""
    return f"{id_.kind.value.replace('_', ' ')} of {display_module(id_.module)}"


def why(tensor: TensorResult, mesh: Mesh = NO_MESH) -> str:
    """How wrong a tensor is, and in what way."""
    found = finding(tensor, mesh)
    if _has_no_size(tensor):
        return found
    return with_commas(size(tensor) or tensor.verdict.value, found)


def _has_no_size(tensor: TensorResult) -> bool:
    """Whether what decides has no number that says how wrong it is."""
    return tensor.worst is not None and tensor.worst.reading.statistic in _WITHOUT_SIZE


def size(tensor: TensorResult) -> str:
    """How wrong a tensor is; empty where no number says it."""
    if tensor.verdict is not Verdict.MISMATCH or tensor.ratio is None or _has_no_size(tensor):
        return ""
    return _must_be_equal(tensor) or line(Line.RATIO, ratio=times(tensor.ratio))


def _must_be_equal(tensor: TensorResult) -> str:
    """Of whole numbers that differ, for which no ratio says how much; empty of others."""
    found = tensor.statistics
    is_whole = tensor.dtype.startswith(("int", "uint", "bool"))
    if found is None or not is_whole or tensor.ratio is None or not math.isinf(tensor.ratio):
        return ""
    return line(Line.MUST_BE_EQUAL, unequal=found.unequal, elements=found.count)


def finding(tensor: TensorResult, mesh: Mesh = NO_MESH) -> str:
    """In what way a tensor is right or wrong; empty where its verdict says all."""
    special = tensor.specifics or Specifics()
    tokens = line(Line.TOKENS, moved=special.moved)
    words = ""
    if tensor.finding is not None:
        words = filled(
            FINDINGS[tensor.finding].words,
            tokens=tokens,
            allowed_moves=special.allowed_moves,
            ranks=listed_ranks(special.ranks, mesh),
            other_ranks=listed_ranks(special.other_ranks, mesh),
            relative_error=special.relative_error,
            gaps=", ".join(special.gaps),
            problem=special.problem,
            dtype=special.dtype,
            reference_dtype=special.reference_dtype,
            annotation=_annotation(tensor.id),
            shape=list(tensor.shape),
            place="" if tensor.worst is None else reading_place(tensor.worst.reading),
            **_numbers_of(tensor),
        )
    if special.fault:
        is_candidate = tensor.finding is not Finding.ONLY_IN_CANDIDATE
        whole = Line.CANDIDATE_NOT_WHOLE if is_candidate else Line.REFERENCE_NOT_WHOLE
        words = with_commas(words, line(whole, fault=special.fault))
    if special.moved and tensor.finding is not Finding.TOKENS_MOVED:
        words = f"{words}; {tokens}" if words else tokens
    return words


def _annotation(id_: TensorId) -> str:
    """The line of code by which a script says how a tensor is split."""
    module = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", f"model.{id_.module}" if id_.module else "model")
    if not re.fullmatch(r"[\w.\[\]]+", module):  # no name in Python
        module = f"model.get_submodule({id_.module!r})"
    what = {Kind.INPUT: "inputs", Kind.OUTPUT: "outputs"}.get(id_.kind.forward, "parameters")
    split = f"ttrace.Split.over(group, dim=0{', sections=(...)' * (what == 'parameters')})"
    return f"ttrace.annotate({module}, {what}={{{id_.slot!r}: {split}}})"


def _numbers_of(tensor: TensorResult) -> dict[str, object]:
    """The numbers of its statistics that findings are about."""
    found = tensor.statistics
    return {
        "gain": math.nan if found is None else found.gain,
        "exact_gain": "" if found is None else exact_gain(found.gain),
        "shift": math.nan if found is None else found.error_sum / max(1, found.count),
        "unequal": 0 if found is None else found.unequal,
        "elements": 0 if found is None else found.count,
        "nonfinite": 0 if found is None else found.nonfinite_candidate,
        "nonfinite_reference": 0 if found is None else found.nonfinite_reference,
    }


def evidence_sentence(tensor: TensorResult, mesh: Mesh = NO_MESH) -> str:
    """row 3 of dim 0 is 120,000x what is allowed (0.4 > 3e-06), on ranks 2, 3."""
    worst = tensor.worst
    if _has_no_size(tensor):
        return with_commas(
            finding(tensor, mesh), on_ranks(tensor.ranks, mesh) if tensor.ranks else ""
        )
    if worst is None or tensor.verdict is not Verdict.MISMATCH:
        return with_commas(tensor.verdict.value, finding(tensor, mesh))
    said = _must_be_equal(tensor) or line(
        Line.EVIDENCE,
        what=reading_place(worst.reading) or STATISTICS[worst.reading.statistic].words,
        ratio=times(worst.ratio),
        value=worst.reading.value,
        allowed=worst.allowed,
    )
    return with_commas(said, on_ranks(tensor.ranks, mesh) if tensor.ranks else "")


def reading_place(reading: Reading) -> str:
    """row (3, 17) of dims 0, 1; empty where a reading is of the whole tensor."""
    if not reading.index:
        return ""
    what = STATISTICS[reading.statistic].words
    if reading.statistic is Statistic.ELEMENT:
        return f"{what} {_index(reading.index)}"
    if len(reading.dims) == 1:
        return f"{what} {reading.index[0]} of dim {reading.dims[0]}"
    return f"{what} {_index(reading.index)} of dims {', '.join(map(str, reading.dims))}"


def diagnosis(found: Diagnosis, mesh: Mesh = NO_MESH) -> str:
    """What kind of mistake it looks like; one from outside brings its sentence with it."""
    if found.mistake not in set(Mistake):
        return found.sentence or found.mistake
    moved = [place for place, source in enumerate(found.order) if place != source]
    sizes = [line(_SIZES.get(name, Line.AXIS), name=name) for name in found.sizes]
    factors = [f"{part.factor:.4g} {on_ranks(part.ranks, mesh)}" for part in found.factors]
    return filled(
        MISTAKES[Mistake(found.mistake)].words,
        dim=found.dims[0] if found.dims else "",
        dims=" and ".join(map(str, found.dims)),
        parts=len(found.order),
        moved=" and ".join(map(str, moved)),
        order=list_first(found.order, _MOST_PARTS),
        size=found.size,
        sizes=" or ".join(sizes),
        factors=", ".join(factors[:_MOST_FACTORS]),
        dtype=found.dtype,
        reference_dtype=found.reference_dtype,
        axes=" or ".join(found.axes),
    )


def with_commas(*parts: str) -> str:
    """Those that are not empty, with commas between."""
    return ", ".join(part for part in parts if part)


def _index(index: Sequence[int]) -> str:
    return f"({', '.join(map(str, index))})"
