"""Older results: files of schemas 3 and 4, which said in sentences what is now said in types.

Enters: the data of such a file. Leaves: data of the present schema. A sentence that is known
becomes its enum and numbers; one that is not is kept as it was told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ttrace.core.blame import Mistake, Phase, Reason, Stage
from ttrace.core.finding import Finding, Topic
from ttrace.core.results import SCHEMA_VERSION, Verdict

SCHEMAS = (3, 4)

_ROOT = "(model)"
_PHASES = {"grad norm": Phase.GRADIENT_NORM}  # others are written as they were
_OF = r"(?P<count>\d+) of (?P<total>\d+)"
_GRADIENTS = r"(?:main gradients|gradients reduced over data-parallel ranks)"

# The order matters where one sentence begins like another.
_REASONS = {
    Reason.NO_TENSOR_OF_IT: r"the reference has it, the candidate has no tensor of it",
    Reason.OTHER_PARAMETERS: rf"{_OF} parameters differ before the step",
    Reason.GATHERED_PARAMETER: r"its last update passes; at the start of this step",
    Reason.OTHER_DATA: r"the candidate was given other data than the reference",
    Reason.FIRST_WRONG_OUTPUT: r"its output is the first wrong tensor",
    Reason.INPUT_FOR_CHILD: r"the input it makes for .* is the first wrong tensor",
    Reason.LOSS_ALONE: r"every module output passes, the loss does not",
    Reason.GRADIENT_OF_INPUT: r"the gradient of its input is the first wrong",
    Reason.GRADIENT_PASSED_BACK: r"the gradient it passes back to .* is the first wrong",
    Reason.GRADIENT_OF_MODEL_OUTPUT: r"the gradient of the model's output is the first wrong",
    Reason.ALL_LOCAL_GRADIENTS: rf"activations and their gradients pass, {_OF} local gradients",
    Reason.LOCAL_GRADIENT: r"activations and their gradients pass, ",
    Reason.GIVEN_REFERENCE_VALUES: r"given the reference's values, .* is wrong",
    Reason.CUT_OFF_FROM_AUTOGRAD: r"the reference has a .* was cut off from autograd .*, and "
    r"(?P<count>\d+) gradients are never made",
    Reason.ACCUMULATED_GRADIENT: r"its local gradient passes, accumulated, ",
    Reason.ALL_ACCUMULATED_GRADIENTS: rf"local gradients pass, {_OF} sums of them",
    Reason.DATA_PARALLEL_GRADIENT: r"its local gradient passes, reduced over data-parallel ranks, ",
    Reason.REDUCED_GRADIENT: r"its local gradient passes, reduced, ",
    Reason.FINALISED_GRADIENT: r"reduced over data-parallel ranks it passes, finalised",
    Reason.COMMON_FACTOR: rf"all {_GRADIENTS} are (?P<factor>\S+) times the reference's \({_OF}\)",
    Reason.REPLICAS_DISAGREE: rf"replicas of the {_GRADIENTS} disagree \({_OF}\)",
    Reason.ROUNDED_LOWER: rf"{_GRADIENTS} were rounded to a lower precision \({_OF}\)",
    Reason.NO_COMMON_FACTOR: rf"{_GRADIENTS} differ without a common factor \({_OF}\)",
    Reason.NOT_THE_NORM: r"it is not the norm of the main gradients",
    Reason.CLIPPED_GRADIENTS: rf"main gradients and their norm pass, {_OF} clipped gradients",
    Reason.CLIPS_ALONE: r"the candidate clips its gradients, the reference does not",
    Reason.OPTIMIZER_STATE: rf"the gradients it was given pass, {_OF} tensors of its state",
    Reason.NO_STATE: r"it has no state for (?P<count>\d+) parameters",
    Reason.NEW_PARAMETER: r"its main gradient passes, ",
    Reason.ALL_NEW_PARAMETERS: rf"main gradients pass, {_OF} new parameters",
    Reason.PARAMETERS_BUT_NOT_COPIES: r"the optimizer's copies in full precision pass, "
    rf"{_OF} new parameters",
    Reason.BUFFER: r"everything else passes, ",
}

_MISTAKES = {
    Mistake.ALL_ZERO: r"it is all zero: never computed, or never received",
    Mistake.NOT_UPDATED: r"it equals its value before the step: it was not updated",
    Mistake.MISSING_ALL_REDUCE: r"each rank holds a part and their sum equals the reference: an "
    r"all-reduce is missing",
    Mistake.MISSING_AVERAGE: r"ranks disagree and their mean equals the reference: an average is "
    r"missing",
    Mistake.TRANSPOSED: r"dims (?P<dims>\d+ and \d+) are exchanged: it is transposed",
    Mistake.ONE_PLACE_LATER: r"it is the reference one place later along dim (?P<dims>\d+)",
    Mistake.ONE_PLACE_EARLIER: r"it is the reference one place earlier along dim (?P<dims>\d+)",
    Mistake.OPPOSITE_SIGN: r"its sign is the opposite",
    Mistake.SUM_FOR_MEAN: r"(?P<size>\d+) times the reference, and \d+ is (?P<sizes>.*): a sum "
    r"where a mean is due",
    Mistake.DIVIDED_TOO_OFTEN: r"1/(?P<size>\d+) of the reference, and \d+ is (?P<sizes>.*): "
    r"divided once too often",
    Mistake.SAME_VECTOR_IN_EVERY_ROW: r"every row is off by the same vector: a bias is added too "
    r"often, or not at all",
    Mistake.ROUNDED_LOWER: r"every value is one of (?P<dtype>\w+), the reference's are not: it was "
    r"rounded to that",
}

_MOVED = r"(?:; )?(?:(?P<moved>\d+) tokens? routed elsewhere)?$"
_LISTED = r"ranks? [\d, ]*\d"

_FINDINGS = {
    Finding.TOKENS_MOVED: r"(?P<moved>\d+) tokens? routed elsewhere, noise explains "
    r"(?P<allowed_moves>\S+)$",
    Finding.EQUAL: rf"equal{_MOVED}",
    Finding.REPLICAS_ROUNDED: rf"replicas differ by rounding{_MOVED}",
    Finding.CONSTANT_FACTOR: rf"a constant factor of \S+?{_MOVED}",
    Finding.FACTOR: rf"a factor of \S+?{_MOVED}",
    Finding.AVERAGE_FACTOR: rf"on average \S+ of the reference{_MOVED}",
    Finding.SHIFT: rf"shifted by \S+?{_MOVED}",
    Finding.CHOICES: rf"\d+ of \d+ choices differ{_MOVED}",
    Finding.PLACE: rf"(?:row|slice|element) [\d(), ]+?(?: of dims? [\d, ]+?)?{_MOVED}",
    Finding.REPLICAS_DISAGREE: rf"replicas on (?P<ranks>{_LISTED}) and (?P<other_ranks>{_LISTED}) "
    rf"disagree by (?P<relative_error>\S+) relative{_MOVED}",
    Finding.RECOMPUTATION_DIFFERS: r"recomputation differs from the original on "
    rf"(?P<ranks>{_LISTED}) by (?P<relative_error>\S+) relative{_MOVED}",
    Finding.NONFINITE: r"\d+ NaN or Inf, the reference has none$",
    Finding.ONLY_IN_REFERENCE: r"only in the reference$",
    Finding.ONLY_IN_CANDIDATE: r"only in the candidate$",
    Finding.REFERENCE_NONFINITE: r"the reference itself has \d+ NaN or Inf here",
    Finding.NO_YARDSTICK: r"differs, and no perturbed reference has it",
}

_TOPICS = {
    Topic.INFERRED_LAYOUTS: r"layout inferred from the shape: (?P<count>\d+) tensors, first "
    r"(?P<first>.*); nothing else says how ranks share them",
    Topic.LOSS_SCALE: r"activation gradients are (?P<factor>\S+) times the reference's, as a loss",
    Topic.UNEQUAL_WEIGHTS: r"the loss weighs microbatches differently from the reference: its "
    r"gradient is (?P<gains>.*) times the reference's; a mean",
    Topic.DETERMINISTIC: r"the reference is deterministic: (?P<total>\d+) tensors",
    Topic.NOT_DETERMINISTIC: rf"the reference is not deterministic: {_OF} tensors differ between "
    r"two runs of it, first (?P<first>.*); that distance",
    Topic.NO_ROOT_CAUSE: r"no module is wrong by itself when it gets the reference's values",
}


def upgraded(data: Mapping[str, Any]) -> dict[str, Any]:
    """Data of schema 3 or 4 as data of the present one."""
    isolation = data["isolation"]
    details = [
        detail | {"diagnosis": _diagnosis(detail.get("diagnosis", ""))}
        for detail in data["details"]
    ]
    found = {detail["id"]: detail["diagnosis"] for detail in details}
    return {
        **data,
        "schema": SCHEMA_VERSION,
        "culprits": [_culprit(culprit, found, isolation) for culprit in data["culprits"]],
        "details": details,
        "notes": [_note(told) for told in data["notes"]],
        "tensors": [_tensor(tensor) for tensor in data["tensors"]],
        "isolation": None if isolation is None else upgraded(isolation),
    }


def _tensor(data: Mapping[str, Any]) -> dict[str, Any]:
    told = str(data["note"])
    if not told:
        is_wrong = data["verdict"] == Verdict.MISMATCH
        return {**data, "finding": Finding.NORM if is_wrong else None, "specifics": None}
    finding, values = _recognised(_FINDINGS, told)
    if finding is None or (finding is Finding.PLACE and not data["judgements"]):
        return {**data, "finding": Finding.TOLD, "specifics": {"told": told}}
    specifics = {
        "ranks": _numbers(values.get("ranks") or ""),
        "other_ranks": _numbers(values.get("other_ranks") or ""),
        "relative_error": values.get("relative_error") or 0.0,
        "moved": int(values.get("moved") or 0),
        "allowed_moves": values.get("allowed_moves") or 0.0,
    }
    return {**data, "finding": finding, "specifics": specifics if any(values.values()) else None}


def _note(told: str) -> dict[str, Any]:
    topic, values = _recognised(_TOPICS, told)
    return {
        "topic": Topic.RUN if topic is None else topic,
        "text": told if topic is None else "",
        "count": int(values.get("count") or 0),
        "total": int(values.get("total") or 0),
        "first": values.get("first"),
        "factor": values.get("factor"),
        "gains": (values.get("gains") or "").split(", ") if values.get("gains") else [],
    }


def _culprit(
    data: Mapping[str, Any], diagnoses: Mapping[str, Any], isolation: Mapping[str, Any] | None
) -> dict[str, Any]:
    told, evidence = str(data["reason"]), data["evidence"]
    if isolation is not None and data in isolation["culprits"]:
        of_isolated = {d["id"]: _diagnosis(d.get("diagnosis", "")) for d in isolation["details"]}
        diagnoses = {**diagnoses, **of_isolated}
    diagnosis = next((diagnoses[id_] for id_ in evidence if diagnoses.get(id_)), None)
    reason, values = _recognised(_REASONS, told)
    steps = re.search(r" \(step (\d+(?:, \d+)*)\)(?:;|$)", told)
    return {
        "blame": _blame(
            data["where"], _PHASES.get(data["part"]) or Phase(data["part"].replace(" ", "_"))
        ),
        "reason": Reason.TOLD if reason is None else reason,
        "evidence": evidence,
        "count": int(values.get("count") or 0),
        "total": int(values.get("total") or 0),
        "factor": values.get("factor"),
        "steps": [] if reason is None or steps is None else _numbers(steps[1]),
        "diagnosis": None if reason is None else diagnosis,
        "told": told if reason is None else "",
    }


def _phase(part: str) -> Phase:
    return _PHASES.get(part) or Phase(part.replace(" ", "_"))


def _blame(where: str, phase: Phase) -> dict[str, Any]:
    stage = where.replace(" ", "_")
    if stage in set(Stage):
        return {"modules": [], "stage": stage, "phase": phase}
    if phase is Phase.PARAMETERS and "." in where:
        modules: Sequence[str] = [name.rpartition(".")[0] for name in where.split(", ")]
    else:
        modules = where.split(" or ")
    paths = dict.fromkeys("" if module == _ROOT else module for module in modules)
    return {"modules": list(paths), "stage": None, "phase": phase}


def _diagnosis(told: str) -> dict[str, Any] | None:
    if not told:
        return None
    mistake, values = _recognised(_MISTAKES, told)
    if mistake is None:
        return {"mistake": "told", "sentence": told}
    sizes = (values.get("sizes") or "").split(" or ")
    return {
        "mistake": mistake,
        "dims": _numbers(values.get("dims") or ""),
        "size": int(values.get("size") or 0),
        "sizes": [re.sub(r"^the (size|number) of ", "", name) for name in sizes if name],
        "dtype": values.get("dtype") or "",
    }


def _recognised(table: Mapping[Any, str], told: str) -> tuple[Any, Mapping[str, str | None]]:
    """The enum of a sentence, and the numbers in it."""
    for key, pattern in table.items():
        match = re.match(pattern, told, re.DOTALL)
        if match is not None:
            return key, match.groupdict()
    return None, {}


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
