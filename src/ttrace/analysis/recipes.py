"""Recipes: what modules of both runs quantise, and which of them the candidate's recipe leaves out.

    layers.1.attention.wo    float8_e4m3fn in the reference, no codes in the candidate

Isolated runs are watched for casts, and perturbed ones see them. What nobody saw is no evidence: a
layout may quantise somewhere else, or in a kernel of its own. Enters: the dtypes of codes, by
module, of both runs; None of one that was not watched. Leaves: the modules that differ; and
diagnoses of culprits that nothing else says anything of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ttrace.core.blame import Culprit, Diagnosis, Mistake, Phase
from ttrace.core.enclosure import Enclosure, enclosures_of
from ttrace.core.quantised import WHOLE_NUMBERS

ByModule = Mapping[str, Sequence[str]]
Codes = ByModule | None


def out_of_recipe(reference: Codes, candidate: Codes) -> dict[str, list[str]]:
    """Modules without the codes that they make in the reference.

    None where more modules differ than agree. Those do not count whose codes are made inside of
    them, by what they lie in, or beside them by what makes none in the reference.
    """
    if reference is None or candidate is None:
        return {}
    expected = formats_of(reference)
    same = {path for path in expected if set(expected[path]) <= {*candidate.get(path, ())}}
    added = [path for path in candidate if path not in reference]
    idle = [path for path in expected if not _formats(candidate.get(path, ()))]
    if len(same) <= len(expected) - len(same):
        return {}
    return {path: expected[path] for path in idle if not _is_elsewhere(path, added)}


def other_formats(reference: Codes, candidate: Codes) -> dict[str, tuple[list[str], list[str]]]:
    """Modules that make codes of another dtype than in the reference: theirs, and the reference's.

    Fewer are no others: some may be made elsewhere, of a weight before it is sent say.
    """
    if reference is None or candidate is None:
        return {}
    found = {}
    for path, expected in formats_of(reference).items():
        made = _formats(candidate.get(path, ()))
        added = [each for each in made if each not in expected]
        if added:
            found[path] = (added, expected)
    return found


def formats_of(codes: Codes) -> dict[str, list[str]]:
    """Modules that quantise, with the dtypes of their codes."""
    return {path: found for path, made in (codes or {}).items() if (found := _formats(made))}


def _formats(codes: Sequence[str]) -> list[str]:
    """Whole numbers are made by others, too, that do not quantise."""
    return [each for each in codes if each != WHOLE_NUMBERS]


def _is_elsewhere(module: str, added: Sequence[str]) -> bool:
    around = {enclosure.module for enclosure in enclosures_of(module)}
    parents = (around - {"", None}) | {module.rpartition(".")[0]}
    inside = Enclosure(module)
    return any(
        path in around or path.rpartition(".")[0] in parents or inside.surrounds(path)
        for path in added
    )


_COMPUTED = frozenset({Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT_GRADIENT})


def diagnose_recipes(
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
