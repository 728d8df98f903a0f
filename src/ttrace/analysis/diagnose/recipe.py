"""What a module does not quantise, or to another format, where nothing else says what is wrong.

No value of a boundary tells: codes live inside of a module. Enters: culprits, and the codes of both
runs (recipes.py). Leaves: the same culprits, some with this as their diagnosis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ttrace.analysis.recipes import Codes, other_formats, out_of_recipe
from ttrace.core.blame import Culprit, Diagnosis, Mistake, Phase
from ttrace.core.enclosure import Enclosure

_COMPUTED = frozenset({Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT_GRADIENT})


def with_recipes(
    culprits: Sequence[Culprit], reference: Codes, candidate: Codes
) -> tuple[Culprit, ...]:
    missing, others = out_of_recipe(reference, candidate), other_formats(reference, candidate)

    def diagnosed(culprit: Culprit) -> Culprit:
        blame = culprit.blame
        if culprit.diagnosis or len(blame.modules) != 1 or blame.phase not in _COMPUTED:
            return culprit
        (module,) = blame.modules
        found = None
        if path := _first_of(module, missing):
            codes = _named(missing[path])
            found = Diagnosis(mistake=Mistake.NOT_QUANTISED, reference_dtype=codes)
        elif path := _first_of(module, others):
            made, codes = map(_named, others[path])
            found = Diagnosis(mistake=Mistake.OTHER_CODES, dtype=made, reference_dtype=codes)
        return culprit if found is None else replace(culprit, diagnosis=found, nearest=None)

    return tuple(map(diagnosed, culprits))


def _first_of(module: str, paths: Iterable[str]) -> str:
    """The module itself, or one inside of it."""
    inside = Enclosure(module)
    return next((path for path in paths if path == module or inside.surrounds(path)), "")


def _named(codes: Sequence[str]) -> str:
    return " and ".join(codes)
