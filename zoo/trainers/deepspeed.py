"""DeepSpeed: ZeRO 0 to 3 in fp32 and bf16, with accumulation and clipping."""

from __future__ import annotations

from dataclasses import replace

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Program, Run, Wrong
from zoo.trainers import EXAMPLES

_FOLDER = EXAMPLES / "deepspeed"
# Which BF16_Optimizer accumulates, instead of that of ZeRO.
_FP32 = (
    Edit(
        '"bf16": {"enabled": options.bf16},',
        '"bf16": {"enabled": options.bf16}, "data_types": {"grad_accum_dtype": "fp32"},',
    ),
)


def _program(
    strategy: str, zero: int, *words: str, against: int = 0, edits: tuple[Edit, ...] = ()
) -> Program:
    """ZeRO on two ranks against a stage on one rank that computes the same."""
    run = Run("train", folder=_FOLDER, edits=edits)
    return Program(
        name=f"deepspeed/{strategy}",
        style="deepspeed",
        reference=replace(run, words=("--zero", str(against), *words)),
        candidate=replace(run, ranks=2, words=("--zero", str(zero), *words)),
        steps=2,
        needs=("deepspeed",),
    )


PROGRAMS: tuple[Program, ...] = (
    *(_program(f"zero{stage}", stage) for stage in range(4)),
    _program("zero0-bf16", 0, "--bf16"),
    # In bf16 without ZeRO, DeepSpeed 0.19.8 makes a step of the optimizer before the first one.
    *(_program(f"zero{stage}-bf16", stage, "--bf16", against=1) for stage in (1, 2, 3)),
    *(_program(f"zero{stage}-accumulation-4", stage, "--accumulate", "4") for stage in (2, 3)),
    *(_program(f"zero{stage}-clipping", stage, "--clip", "0.5") for stage in (0, 2, 3)),
    _program("zero1-bf16-fp32-gradients", 1, "--bf16", "--clip", "0.5", against=1, edits=_FP32),
    *(
        Program(
            name=f"deepspeed/{script}",
            style="deepspeed",
            reference=Run(script, folder=_FOLDER),
            candidate=Run(script, ranks=2, folder=_FOLDER),
            steps=2,
            needs=("deepspeed",),
        )
        for script in ("moe", "pipeline")
    ),
)

_ATTACHED = "tracer = ttrace.attach(model)\n"


def _patched(*lines: str) -> tuple[Edit, ...]:
    """The framework with a mistake in it, from before the first step on."""
    return (Edit(_ATTACHED, "\n".join((*lines, _ATTACHED))),)


WRONG: tuple[Wrong, ...] = (
    Wrong(
        name="deepspeed/zero0/no-reduction",
        program="deepspeed/zero0",
        title="gradients are not reduced",
        edits=_patched("model.allreduce_gradients = lambda: None"),
        expected=(Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),),
    ),
    Wrong(
        name="deepspeed/zero2/stale-partition",
        program="deepspeed/zero2",
        title="updated partitions are not brought to the other ranks",
        edits=_patched(
            "from deepspeed.runtime.zero import stage_1_and_2",
            "stage_1_and_2.all_gather_dp_groups = lambda **_: None",
        ),
        expected=(Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE),),
    ),
    Wrong(
        name="deepspeed/zero2-clipping/norm-of-a-partition",
        program="deepspeed/zero2-clipping",
        title="every rank clips by the norm of its own partition",
        edits=_patched(
            "model.optimizer.get_grad_norm_direct = lambda gradients, _: (",
            "    torch.stack([g.norm() for g in gradients]).norm())",
        ),
        expected=(Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM),),
    ),
    Wrong(
        name="deepspeed/zero3-clipping/norm-of-a-partition",
        program="deepspeed/zero3-clipping",
        title="every rank clips by the norm of what it holds",
        edits=_patched(
            "model.optimizer.get_grad_norm_direct = lambda gradients, _: (",
            "    torch.stack([g.norm() for g in gradients]).norm())",
        ),
        expected=(Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM),),
    ),
    Wrong(
        name="deepspeed/zero1-bf16-fp32-gradients/norm-of-a-rank",
        program="deepspeed/zero1-bf16-fp32-gradients",
        title="ranks do not clip by the same norm (DeepSpeed#1801)",
        edits=_patched(
            "from deepspeed.runtime import bf16_optimizer",
            "norm = bf16_optimizer.get_global_norm_of_tensors",
            "bf16_optimizer.get_global_norm_of_tensors = lambda **g: norm(**g) * (1 + rank)",
        ),
        expected=(Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM),),
    ),
    Wrong(
        name="deepspeed/zero2-bf16/step-before-the-first",
        program="deepspeed/zero2-bf16",
        title="without ZeRO the optimizer has made a step with zero gradients already",
        edits=(Edit('"stage": options.zero', '"stage": 0'),),
        expected=(Blame.at(Stage.INITIAL_PARAMETERS, Phase.PARAMETERS),),
    ),
    Wrong(
        name="deepspeed/zero3/stale-partition",
        program="deepspeed/zero3",
        title="what the optimizer updated is not copied into the partitions",
        edits=_patched(
            "model.optimizer._reassign_or_swap_out_partitioned_parameters = lambda _: None"
        ),
        expected=(Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE),),
    ),
    Wrong(
        name="deepspeed/zero3/learning-rate-of-a-rank",
        program="deepspeed/zero3",
        title="rank 1 has twice the learning rate",
        edits=(Edit("lr=1e-3", "lr=1e-3 * (1 + rank)"),),
        expected=(Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE),),
    ),
    Wrong(
        name="deepspeed/zero2-accumulation-4/not-divided",
        program="deepspeed/zero2-accumulation-4",
        title="the loss is not divided by the number of microbatches",
        edits=(Edit("model.backward(loss)", "model.backward(loss, scale_wrt_gas=False)"),),
        expected=(Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),),
    ),
    Wrong(
        name="deepspeed/zero3-accumulation-4/last-microbatch",
        program="deepspeed/zero3-accumulation-4",
        title="gradients of a microbatch take the place of those before it (DeepSpeed#7981)",
        edits=(
            Edit(
                "            model.step()\n",
                "            model.step()\n"
                "            model.optimizer._epilogue_ran_this_backward = False\n",
            ),
        ),
        expected=(Blame.at(Stage.GRADIENT_ACCUMULATION, Phase.MAIN_GRADIENT),),
    ),
    Wrong(
        name="deepspeed/pipeline/norm-of-the-first-stage",
        program="deepspeed/pipeline",
        title="the norm is that of the first stage alone, as DeepSpeed 0.19.8 makes it by itself",
        edits=(Edit("parameter.model_parallel = True", "parameter.model_parallel = False"),),
        expected=(Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM),),
    ),
    Wrong(
        name="deepspeed/moe/experts-averaged-over-their-group",
        program="deepspeed/moe",
        title="gradients of experts are divided by the ranks that hold the same ones alone",
        edits=_patched(
            "reduce = model.allreduce_no_retain",
            "model.allreduce_no_retain = lambda bucket, dp_world_size=None, **others: (",
            "    reduce(bucket, **others))",
        ),
        expected=tuple(
            Blame.of(
                f"moe.deepspeed_moe.experts.deepspeed_experts.{expert}.{layer}",
                phase=Phase.GRADIENT_REDUCTION,
            )
            for expert in range(4)
            for layer in (0, 2)
        ),
    ),
)
