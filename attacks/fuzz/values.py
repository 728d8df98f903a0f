"""Hypothesis strategies: what may stand in a field instead of what belongs there."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_WHOLE = st.one_of(
    st.integers(-4, 12),
    st.sampled_from([1 << n for n in (16, 20, 24, 31, 32, 40, 53, 62, 63, 64, 200)]),
    st.integers(),
)
_NUMBERS = st.one_of(_WHOLE, st.floats(allow_nan=False, allow_infinity=False))
_TEXT = st.one_of(
    st.sampled_from(
        [
            *("", "inf", "nan", "-inf", "1e999", "0x10", "step0/a:output.0", "step0/:input.0"),
            *(
                "step0/a#1:output.0",
                "step9/b:grad.w",
                "float32",
                "int32",
                "qint8",
                "bfloat16",
                "F32",
            ),
            *("seg-00000.safetensors", "../../etc/passwd", "/dev/zero", "seg-99999.safetensors"),
            *(
                "\x1b[31mred",
                "a\nb",
                "</script><script>alert(1)</script>",
                "\ud800",
                "\u202e",
                "\x00",
            ),
            *("[bold]x[/bold]", "::error::x", "full", "missing", "pass", "dp", "9" * 5000),
        ]
    ),
    st.text(max_size=20),
)
_SCALARS = st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXT)
_PLAIN = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_TEXT, inner, max_size=3)),
    max_leaves=6,
)


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


_BOMBS: list[Any] = [
    [1] * 65,
    [1] * 40,
    [2] * 40,
    [0] * 64,
    [1 << 40],
    [1 << 62, 0],
    [1 << 20, 1 << 20],
    [[[index, 1] for index in range(0, 4000, 2)]] * 2,
    [[[0, 1 << 62]]],
    [[[None, 1 << 62]]],
    [[]] * 70,
    "x" * 200_000,
    list(range(5000)),
    {str(index): index for index in range(2000)},
    _nested(200),
    [[0.5] * 300] * 300,
]
BOMBS = st.sampled_from(_BOMBS)


def instead_of(value: Any) -> st.SearchStrategy[Any]:
    """What may stand where this value stands: near it, of another type, or far too large."""
    near: list[st.SearchStrategy[Any]] = [_PLAIN, BOMBS]
    if isinstance(value, bool):
        near += [st.just(not value)] * 2
    elif isinstance(value, int):
        near += [st.sampled_from([value + 1, value - 1, -value, 2 * value, value * 1.0])] * 2
    elif isinstance(value, float):
        near += [st.sampled_from([-value, 2 * value, 0.0, value + 1, str(value)])] * 2
    elif isinstance(value, str):
        near += [_TEXT] * 2
    elif isinstance(value, list):
        others = [value[1:], value[:-1], value + value[-1:], value[::-1], [value]]
        near += [st.sampled_from(others), st.lists(_PLAIN, max_size=4)]
        if len(value) > 1:
            near.append(st.permutations(value))
    elif isinstance(value, dict):
        near.append(st.sampled_from([{}, {**value, "more": 1}, list(value.values()), [value]]))
    return st.one_of(near)
