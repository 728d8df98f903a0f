"""Values whose hash is computed once: ids and layouts are keys of many dicts, many times each.

The hash is no field: it is neither compared, nor written, nor sent to another process, in which
texts have other hashes.
"""

from __future__ import annotations


class HashedOnce:
    """Base of a frozen dataclass with slots, which takes over its `__hash__`."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            found = hash(self._key())
            object.__setattr__(self, "_hash", found)
            return found

    def _key(self) -> tuple[object, ...]:
        """What tells two of them apart."""
        return tuple(getattr(self, name) for name in type(self).__slots__)
