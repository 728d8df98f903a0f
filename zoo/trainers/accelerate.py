"""Loops of Accelerate."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Program, Run, Wrong
from zoo.trainers import EXAMPLES

_FOLDER = EXAMPLES / "accelerate"
_ACCUMULATION = (
    Edit("gradient_accumulation_steps=1", "gradient_accumulation_steps=4"),
    Edit("batch_size=8)", "batch_size=2)"),
)
_BF16 = Edit("    cpu=True,\n", '    cpu=True,\n    mixed_precision="bf16",\n')
_CLIPPING = Edit(
    "        optimizer.step()",
    "        if accelerator.sync_gradients:\n"
    "            accelerator.clip_grad_norm_(model.parameters(), 0.1)\n"
    "        optimizer.step()",
)
_LORA = (
    Edit("import torch\n", "import torch\nfrom peft import LoraConfig, get_peft_model\n"),
    Edit(
        "loader = DataLoader",
        'lora = LoraConfig(target_modules=["c_attn"], init_lora_weights=False)\n'
        "model = get_peft_model(model, lora)\n"
        "loader = DataLoader",
    ),
)
_FSDP2 = (
    Edit("import torch\n", "import torch\nfrom torch.distributed.fsdp import fully_shard\n"),
    Edit(
        "optimizer = torch.optim",
        "for block in model.transformer.h:\n"
        "    fully_shard(block)\n"
        "fully_shard(model)\n"
        "optimizer = torch.optim",
    ),
    Edit(
        "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)",
        "optimizer, loader = accelerator.prepare(optimizer, loader)",
    ),
)
# What a plugin does on GPUs: on CPU the Accelerator passes it over.
_FSDP2_PLUGIN = (
    Edit(
        "from accelerate import Accelerator, DataLoaderConfiguration\n",
        "from accelerate import Accelerator, DataLoaderConfiguration\n"
        "from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin\n",
    ),
    Edit(
        "torch.manual_seed(0)\n",
        "accelerator.state.distributed_type = DistributedType.FSDP\n"
        "accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(\n"
        "    fsdp_version=2,\n"
        '    auto_wrap_policy="transformer_based_wrap",\n'
        '    transformer_cls_names_to_wrap=["GPT2Block"],\n'
        ")\n"
        "torch.manual_seed(0)\n",
    ),
)


def _program(
    strategy: str, *edits: Edit, candidate: tuple[Edit, ...] = (), frozen: bool = False
) -> Program:
    return Program(
        name=f"accelerate/{strategy}",
        style="Accelerate",
        reference=Run("train", edits=edits, folder=_FOLDER),
        candidate=Run("train", ranks=2, edits=(*edits, *candidate), folder=_FOLDER),
        steps=2,
        unjudged="the weights beside the low-rank ones are frozen" if frozen else "",
        needs=("accelerate", "transformers", *(("peft",) if frozen else ())),
    )


PROGRAMS: tuple[Program, ...] = (
    _program("ddp"),
    _program("accumulation-4", candidate=_ACCUMULATION),
    _program("bf16", _BF16),
    _program("clipping", _CLIPPING),
    _program("lora", *_LORA, frozen=True),
    _program("fsdp2", candidate=_FSDP2),
    _program("fsdp2-plugin", candidate=(*_ACCUMULATION, *_FSDP2_PLUGIN)),
    _program("fsdp2-clipping", _CLIPPING, candidate=_FSDP2),
)


def _wrong(name: str, title: str, *edits: Edit, expected: tuple[Blame, ...]) -> Wrong:
    program, _, _ = name.rpartition("/")
    return Wrong(
        name=f"accelerate/{name}",
        program=f"accelerate/{program}",
        title=title,
        edits=edits,
        expected=expected,
    )


WRONG: tuple[Wrong, ...] = (
    _wrong(
        "ddp/not-wrapped",
        "the wrapped model that prepare returns is not the one that is called",
        Edit("model, optimizer, loader = accel", "_, optimizer, loader = accel"),
        expected=(Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),),
    ),
    _wrong(
        "ddp/rate-of-one-rank",
        "rank 1 has twice the learning rate",
        Edit("lr=1e-3", "lr=1e-3 * (1 + accelerator.process_index)"),
        expected=(Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE),),
    ),
    _wrong(
        "accumulation-4/divided-twice",
        "the loss is divided by the number of microbatches, which accelerator.backward does too",
        Edit("accelerator.backward(loss)", "accelerator.backward(loss / 4)"),
        expected=(Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),),
    ),
    _wrong(
        "fsdp2-clipping/norm-of-one-partition",
        "every rank clips by the norm of what it holds",
        Edit(
            "accelerator.clip_grad_norm_(model.parameters(), 0.1)",
            "held = [parameter.grad.to_local() for parameter in model.parameters()]\n"
            "            norm = torch.nn.utils.get_total_norm(held)\n"
            "            torch.nn.utils.clip_grads_with_norm_(model.parameters(), 0.1, norm)",
        ),
        expected=(Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM),),
    ),
    _wrong(
        "fsdp2/seed-of-one-rank",
        "every rank starts from weights of its own",
        Edit("model = GPT2", "torch.manual_seed(accelerator.process_index)\nmodel = GPT2"),
        expected=(Blame.of("transformer", phase=Phase.PARAMETERS),),
    ),
    _wrong(
        "fsdp2/optimizer-before-sharding",
        "the optimizer holds the parameters that were there before they were sharded",
        Edit(
            "for block in model.",
            "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\nfor block in model.",
        ),
        Edit(
            "fully_shard(model)\noptimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)",
            "fully_shard(model)",
        ),
        expected=(
            Blame.at(Stage.OPTIMIZER_STEP, Phase.STATE),
            # Its zero_grad does not reach them either.
            Blame.at(Stage.GRADIENT_ACCUMULATION, Phase.MAIN_GRADIENT),
        ),
    ),
)
