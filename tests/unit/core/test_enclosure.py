"""What lies inside an enclosure, and what leaves it."""

from __future__ import annotations

import pytest

from ttrace.core.enclosure import Enclosure, enclosures_of, is_enclosed
from ttrace.core.ids import TensorId

ATTENTION = Enclosure("layers.1.attention")
STEP = Enclosure(None)
MODEL = Enclosure("")


@pytest.mark.parametrize(
    ("text", "inside", "leaves"),
    [
        ("layers.1.attention.core:output.0", True, False),
        ("layers.1.attention.core:grad_input.0", True, False),
        ("layers.1.attention.q:grad.weight", False, True),
        ("layers.1.attention:output.0", False, True),
        ("layers.1.attention:grad_input.0", False, True),
        ("layers.1.attention:input.0", False, False),  # made outside
        ("layers.1.attention:grad_output.0", False, False),
        ("layers.1.attention_norm:output.0", False, False),  # only its name begins alike
        ("layers.1:output.0", False, False),
        ("layers.1.attention.q:main_grad.weight", False, False),
    ],
)
def test_a_module(text: str, *, inside: bool, leaves: bool) -> None:
    id_ = TensorId.parse(f"step0/{text}")
    assert ATTENTION.holds(id_) is inside
    assert ATTENTION.leaves(id_) is leaves
    assert is_enclosed(id_, [Enclosure("head"), ATTENTION]) is inside


def test_the_step_holds_all_activations_and_the_loss_leaves_it() -> None:
    output, loss, grad = (
        TensorId.parse(f"step0/{text}") for text in (":output.0", ":loss", "a:grad.weight")
    )
    assert STEP.holds(output)
    assert not MODEL.holds(output)
    assert MODEL.leaves(output)
    assert STEP.leaves(loss)
    assert STEP.leaves(grad)
    assert not STEP.holds(loss)


def test_enclosures_go_from_the_innermost_to_the_step() -> None:
    found = [enclosure.module for enclosure in enclosures_of("layers.1.attention")]
    assert found == ["layers.1", "layers", "", None]
