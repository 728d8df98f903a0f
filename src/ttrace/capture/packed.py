"""All settings of a run as one word, which no shell, JSON, YAML or scheduler changes on its way.

    pack({"OUT": "/my runs/$1", "STEPS": "3"})      eyJPVVQiOiAiL215IHJ1bnMvJDEiLCAiU1RFUFMiOiAiMyJ9

Letters, digits, - and _ (base64 of RFC 4648, section 5) mean nothing to any of them, in quotes or
without. A word that was cut or changed is told from one that was not.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping


def pack(variables: Mapping[str, str]) -> str:
    text = json.dumps(dict(variables)).encode()
    return base64.urlsafe_b64encode(text).decode("ascii").rstrip("=")


def unpack(word: str) -> dict[str, str] | None:
    """The variables; None of a word that `pack` did not make."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", word):
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(word + "=" * (-len(word) % 4)))
    except (binascii.Error, ValueError):
        return None
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        return None
    return found
