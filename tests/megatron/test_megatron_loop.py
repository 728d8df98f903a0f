"""The loop of Megatron-LM: `train_step` runs forward and backward until its rerun machine agrees.

megatron.training is in no wheel; the machine is. `train_step` here has the calls of the real one,
in its order, around the model, schedule and optimizer of the example.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from tests.support.tracing import explain
from ttrace.adapters.patching import replaced
from ttrace.core.blame import Blame, Phase, Stage
from zoo.megatron.training import alone, on_ranks
from zoo.programs.trial import unjudged
from zoo.trials import Trials, blames

SMALL = {"layers": 2, "microbatches": 4, "steps": 2}


def train_step(mode: str, layout: Any, number: int, model: list[Any], optimizer: Any) -> None:
    """What megatron/training/training.py does from the first gradient buffer to the update."""
    from gpt import batches, forward_step, per_rank
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.rerun_state_machine import (
        RerunDataIterator,
        RerunMode,
        get_rerun_state_machine,
        initialize_rerun_state_machine,
    )

    if number == 0:
        initialize_rerun_state_machine(mode=RerunMode(mode))
    machine = get_rerun_state_machine()
    data = [RerunDataIterator(batches(layout, number)) for _ in model]

    def forward(iterator: Iterator[Any], chunk: Any) -> Any:
        output, loss = forward_step(layout, iterator, chunk)

        def checked(*given: Any) -> Any:
            found = loss(*given)
            machine.validate_result(
                result=found[0].detach(),
                rejection_func=lambda loss: bool(loss.isnan().any()),
                message="found NaN in local forward loss calculation",
            )
            return found

        return output, checked

    while machine.should_run_forward_backward(data):
        for chunk in model:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=data,
            model=model,
            num_microbatches=per_rank(layout),
            seq_length=layout.length,
            micro_batch_size=layout.micro_batch,
        )
    assert machine.should_checkpoint_and_exit() == (False, False, 0)
    optimizer.step()


def _of(mode: str, stack: ExitStack) -> None:
    import train_traced
    from megatron.core.rerun_state_machine import destroy_rerun_state_machine

    stack.enter_context(replaced(train_traced, "step", partial(train_step, mode)))
    stack.callback(destroy_rerun_state_machine)


disabled = partial(_of, "disabled")
validated = partial(_of, "validate_results")


def uncleared(stack: ExitStack) -> None:
    """As `train_step` without its first two lines."""
    from megatron.core.distributed import DistributedDataParallel

    stack.enter_context(replaced(DistributedDataParallel, "zero_grad_buffer", lambda _: None))
    validated(stack)


@pytest.mark.parametrize("mode", ["disabled", "validated"])
def test_a_train_step_of_megatron_lm_is_a_step(mode: str, trials: Trials) -> None:
    planted = f"{__name__}:{mode}"
    layout = SMALL | {"tp": 2, "sp": True}
    result = trials.compare(alone(SMALL, planted), on_ranks(2, layout, planted), steps=2)
    assert result.exit_code == 0, explain(result)
    assert not unjudged(result)


def test_buffers_that_such_a_step_does_not_clear_are_named(trials: Trials) -> None:
    layout = SMALL | {"tp": 2, "sp": True}
    reference = alone(SMALL, f"{__name__}:validated")
    result = trials.compare(reference, on_ranks(2, layout, f"{__name__}:uncleared"), steps=2)
    wrong = Blame.at(Stage.GRADIENT_ACCUMULATION, Phase.MAIN_GRADIENT)
    assert blames(result) == (wrong,), explain(result)
