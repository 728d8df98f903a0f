"""Says that two ranks compute what one does. FORGET_REDUCTION=1 in the environment breaks it."""

from mlp import train

from ttrace.testing import assert_equivalent


def test_tensor_parallel_equals_one_device() -> None:
    assert_equivalent(train, train, world_size=2)
