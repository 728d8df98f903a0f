"""Fillings: what the sentences about one tensor are filled in with."""

from __future__ import annotations

import math
import re

from ttrace.core.ids import Kind, TensorId
from ttrace.core.results import TensorResult
from ttrace.report.numbers import exact_gain


def annotation_of(id_: TensorId) -> str:
    """The line of code by which a script says how a tensor is split."""
    module = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", f"model.{id_.module}" if id_.module else "model")
    if not re.fullmatch(r"[\w.\[\]]+", module):  # no name in Python
        module = f"model.get_submodule({id_.module!r})"
    what = {Kind.INPUT: "inputs", Kind.OUTPUT: "outputs"}.get(id_.kind.forward, "parameters")
    split = f"ttrace.Split.over(group, dim=0{', sections=(...)' * (what == 'parameters')})"
    return f"ttrace.annotate({module}, {what}={{{id_.slot!r}: {split}}})"


def numbers_of(tensor: TensorResult) -> dict[str, object]:
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
