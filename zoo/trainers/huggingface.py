"""The Trainer of transformers."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Program, Run, Wrong
from zoo.trainers import EXAMPLES

_FOLDER = EXAMPLES / "huggingface"
_ACCUMULATION = Edit(
    "per_device_train_batch_size=8 // world,",
    "per_device_train_batch_size=8 // world // 4,\n    gradient_accumulation_steps=4,",
)
_BF16 = Edit("    use_cpu=True,\n", "    use_cpu=True,\n    bf16=True,\n")
_CLIPPING = Edit("    learning_rate=", "    max_grad_norm=0.1,\n    learning_rate=")
_TOKENS = Edit(
    "for ids in documents]",
    "for ids in documents]\n"
    "for length, row in enumerate(dataset):  # padded: no loss there\n"
    '    row["labels"][4 + length % 12 :] = -100',
)
_LORA = (
    Edit("import torch\n", "import torch\nfrom peft import LoraConfig, get_peft_model\n"),
    Edit(
        "documents = ",
        'lora = LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)\n'
        "model = get_peft_model(model, lora)\n"
        "documents = ",
    ),
)
_MOE = (
    Edit("LlamaConfig(", "MixtralConfig(num_local_experts=4, num_experts_per_tok=2, "),
    Edit("LlamaForCausalLM(config)", "MixtralForCausalLM(config)"),
    Edit("LlamaConfig, LlamaForCausalLM", "MixtralConfig, MixtralForCausalLM"),
)
_ZERO2 = Edit(
    "    use_cpu=True,\n",
    "    use_cpu=True,\n"
    "    deepspeed={\n"
    '        "zero_optimization": {"stage": 2},\n'
    '        "train_micro_batch_size_per_gpu": "auto",\n'
    '        "gradient_accumulation_steps": "auto",\n'
    '        "gradient_clipping": "auto",\n'
    "    },\n",
)
# What TrainingArguments(fsdp=...) does on GPUs: on CPU the Accelerator passes it over.
_FSDP2 = (
    Edit(
        "import torch\n",
        "import torch\n"
        "from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin\n",
    ),
    Edit(
        "trainer.train()\n",
        "trainer.accelerator.state.distributed_type = DistributedType.FSDP\n"
        "trainer.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(\n"
        "    fsdp_version=2,\n"
        '    auto_wrap_policy="transformer_based_wrap",\n'
        '    transformer_cls_names_to_wrap=["LlamaDecoderLayer"],\n'
        ")\n"
        "trainer.is_fsdp_enabled = True\n"
        "trainer.train()\n",
    ),
)


def _program(
    strategy: str,
    *edits: Edit,
    candidate: tuple[Edit, ...] = (),
    needs: tuple[str, ...] = (),
    frozen: bool = False,
) -> Program:
    return Program(
        name=f"hf-trainer/{strategy}",
        style="HF Trainer",
        reference=Run("train", edits=edits, folder=_FOLDER),
        candidate=Run("train", ranks=2, edits=(*edits, *candidate), folder=_FOLDER),
        steps=2,
        unjudged="the weights beside the low-rank ones are frozen" if frozen else "",
        needs=("transformers", "accelerate", *needs),
    )


PROGRAMS: tuple[Program, ...] = (
    _program("ddp"),
    _program("ddp-accumulation-4", candidate=(_ACCUMULATION,)),
    _program("ddp-bf16", _BF16),
    _program("ddp-clipping", _CLIPPING),
    _program("tokens", _TOKENS, candidate=(_ACCUMULATION,)),
    _program("fsdp2", candidate=_FSDP2),
    _program("deepspeed-zero2", candidate=(_ZERO2, _ACCUMULATION), needs=("deepspeed",)),
    _program("lora", *_LORA, needs=("peft",), frozen=True),
    _program("moe", *_MOE),
)


def _own_trainer(body: str) -> tuple[Edit, ...]:
    """A class of one's own, as people write to change one thing."""
    return (
        Edit("arguments = ", f"class MyTrainer(Trainer):\n{body}\n\narguments = "),
        Edit("trainer = Trainer(", "trainer = MyTrainer("),
    )


_LOSS_OF_ONES_OWN = (
    "    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):\n"
    "        return model(**inputs).loss\n"
)
# That the model is told how many tokens to divide by is an input of it.
_INPUT = Blame.at(Stage.MODEL_INPUT, Phase.INPUTS)


def _wrong(name: str, title: str, *edits: Edit, expected: Blame) -> Wrong:
    program, _, _ = name.rpartition("/")
    return Wrong(
        name=f"hf-trainer/{name}",
        program=f"hf-trainer/{program}",
        title=title,
        edits=edits,
        expected=(expected,),
    )


WRONG: tuple[Wrong, ...] = (
    _wrong(
        "tokens/local-tokens",
        "the loss is divided by the tokens of each rank",
        Edit("    learning_rate=", "    average_tokens_across_devices=False,\n    learning_rate="),
        expected=_INPUT,
    ),
    _wrong(
        "tokens/mean-of-means",
        "each microbatch is divided by its own tokens",
        *_own_trainer(f"    loss_is_scaled_for_ga = False\n\n{_LOSS_OF_ONES_OWN}"),
        expected=_INPUT,
    ),
    _wrong(
        "ddp-accumulation-4/not-divided",
        "a loss of one's own leaves num_items_in_batch out, and nobody divides by the microbatches",
        *_own_trainer(_LOSS_OF_ONES_OWN),
        expected=_INPUT,
    ),
    _wrong(
        "ddp-accumulation-4/never-reduced",
        "gradients are not reduced after the last microbatch either",
        *_own_trainer(
            "    def training_step(self, model, *arguments):\n"
            "        with self.accelerator.no_sync(model):\n"
            "            return super().training_step(model, *arguments)\n"
        ),
        expected=Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),
    ),
    _wrong(
        "ddp/rate-of-one-rank",
        "rank 1 has twice the learning rate",
        Edit("learning_rate=1e-3", 'learning_rate=1e-3 * (1 + int(os.environ["RANK"]))'),
        expected=Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE),
    ),
    _wrong(
        "ddp-clipping/norm-of-one-rank",
        "rank 1 clips to twice the norm",
        Edit("max_grad_norm=0.1", 'max_grad_norm=0.1 * (1 + int(os.environ["RANK"]))'),
        expected=Blame.at(Stage.GRADIENT_CLIPPING, Phase.CLIP),
    ),
)
