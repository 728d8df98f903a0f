"""The text of an id is its own inverse, for every name that a string can be."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from ttrace.core.ids import Kind, TensorId
from ttrace.text import inert

# Whatever the text of an id is made of, its escapes, and every character, surrogates too.
PIECES = st.sampled_from([*"\\#1:./@~%", "~no_grad", "step0/", "output", "grad", "x1b", "##["])
NAMES = st.lists(PIECES | st.characters(exclude_categories=())).map("".join)
IDS = st.builds(
    TensorId,
    step=st.integers(0, 10**12),
    module=NAMES,
    kind=st.sampled_from(list(Kind)),
    slot=NAMES,
    call=st.integers(0, 3),
    apart=st.booleans(),
    turn=st.integers(0, 3),
    asked=st.booleans(),
)


@given(IDS)
@example(TensorId(step=0, module="a#1", kind=Kind.OUTPUT, slot="0"))
def test_an_id_is_read_from_its_text(id_: TensorId) -> None:
    assert TensorId.parse(str(id_)) == id_


@given(IDS)
def test_the_text_of_an_id_is_inert(id_: TensorId) -> None:
    assert str(id_).isprintable()
    assert inert(str(id_)) == str(id_)


@given(IDS, IDS)
def test_two_ids_have_two_texts(one: TensorId, other: TensorId) -> None:
    assert (one == other) == (str(one) == str(other))
