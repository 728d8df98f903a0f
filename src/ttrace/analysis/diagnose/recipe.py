"""What a module quantises in one of both runs alone, or to another format.

    layers.1.feed_forward.w2    float8_e4m3fn in the reference, nothing in the candidate

No value of a boundary tells: codes live inside of a module. Both isolated runs were watched for the
codes that each module makes. Enters: culprits, and these codes. Leaves: the same culprits, where
nothing else says what is wrong with this as their diagnosis; and all modules that quantise
otherwise, which is no mistake by itself: a layout may quantise somewhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ttrace.analysis.sources import Codes
from ttrace.core.blame import Culprit, Diagnosis, Mistake, Phase
from ttrace.core.enclosure import Enclosure

_COMPUTED = frozenset({Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT_GRADIENT})
_NONE = "no codes"


def with_recipes(
    culprits: Sequence[Culprit], reference: Codes, candidate: Codes
) -> tuple[Culprit, ...]:
    """None: nobody watched that run."""
    if reference is None or candidate is None:
        return tuple(culprits)
    return tuple(_with_recipe(culprit, reference, candidate) for culprit in culprits)


def unlike_recipes(reference: Codes, candidate: Codes) -> tuple[str, ...]:
    """Modules that make other codes in both runs; none where nobody watched one of them."""
    if reference is None or candidate is None:
        return ()
    every = dict.fromkeys((*reference, *candidate))
    return tuple(
        path
        for path in every
        if _diagnosis(reference.get(path, ()), candidate.get(path, ())) is not None
    )


def _with_recipe(
    culprit: Culprit,
    reference: Mapping[str, Sequence[str]],
    candidate: Mapping[str, Sequence[str]],
) -> Culprit:
    blame = culprit.blame
    if culprit.diagnosis or len(blame.modules) != 1 or blame.phase not in _COMPUTED:
        return culprit
    (module,) = blame.modules
    found = _diagnosis(_made_in(module, reference), _made_in(module, candidate))
    return culprit if found is None else replace(culprit, diagnosis=found, nearest=None)


def _made_in(module: str, codes: Mapping[str, Sequence[str]]) -> list[str]:
    """By the module and by those inside of it."""
    inside = Enclosure(module)
    made = (
        each
        for path, of_one in codes.items()
        if path == module or inside.surrounds(path)
        for each in of_one
    )
    return list(dict.fromkeys(made))


def _diagnosis(expected: Sequence[str], found: Sequence[str]) -> Diagnosis | None:
    """Codes that are made elsewhere, of a weight before it is sent say, are no others."""
    if expected and not found:
        return Diagnosis(mistake=Mistake.NOT_QUANTISED, reference_dtype=_named(expected))
    added = [each for each in found if each not in expected]
    if added:
        return Diagnosis(
            mistake=Mistake.OTHER_CODES,
            dtype=_named(added),
            reference_dtype=_named(expected) or _NONE,
        )
    return None


def _named(codes: Sequence[str]) -> str:
    return " and ".join(codes)
