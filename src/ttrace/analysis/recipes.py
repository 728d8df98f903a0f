"""What modules of both runs quantise: which of them the candidate's recipe leaves out.

    layers.1.attention.wo    float8_e4m3fn in the reference, no codes in the candidate

Isolated runs are watched for casts, and perturbed ones see them. What nobody saw is no evidence: a
layout may quantise somewhere else, or in a kernel of its own. Enters: the dtypes of codes, by
module, of both runs; None of one that was not watched. Leaves: the modules that differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ttrace.core.enclosure import Enclosure, enclosures_of
from ttrace.core.quantising import WHOLE_NUMBERS

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
