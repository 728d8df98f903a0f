"""All architectures of the grid, by name."""

from __future__ import annotations

from functools import cache

from ttrace.errors import UsageError
from zoo.clean.architecture import Architecture
from zoo.clean.by_hand import MEGATRON
from zoo.clean.hugging_face import HUGGING_FACE, is_installed
from zoo.clean.language import LANGUAGE
from zoo.clean.others import OTHERS
from zoo.clean.recurrent import RECURRENT
from zoo.clean.vision import VISION

OWN = (*LANGUAGE, MEGATRON, *VISION, *RECURRENT, *OTHERS)


@cache
def architectures() -> dict[str, Architecture]:
    """Those of transformers only where that is installed."""
    return {each.name: each for each in (*OWN, *(HUGGING_FACE if is_installed() else ()))}


def find_architecture(name: str) -> Architecture:
    known = architectures()
    if name not in known:
        raise UsageError(
            f"no architecture is called {name}; there are {', '.join(known)}"
            + ("" if is_installed() else "; those of Hugging Face need `pip install transformers`")
        )
    return known[name]
