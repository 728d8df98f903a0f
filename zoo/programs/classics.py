"""Small programs as they stand in tutorials and first repositories, each in data parallel."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Program, Run, Wrong

_STYLE = "classics"
_SCRIPTS = {
    "gan": "gan_ddp",
    "gradient-penalty": "gradient_penalty",
    "vae": "vae_ddp",
    "image-classifier": "cnn_ddp",
    "packed-rnn": "packed_rnn",
    "word-lm": "word_lm",
    "siamese": "siamese",
    "forward-forward": "forward_forward",
    "actor-critic": "actor_critic",
    "accumulated": "accumulated",
    "dpo": "dpo",
    "lora": "lora",
    "recomputed": "recomputed",
    "ema": "ema",
    "regression": "regression",
    "microbatch-steps": "microbatch_steps",
    "microbatch-fsdp2": "microbatch_fsdp2",
}

PROGRAMS = tuple(
    Program(
        name=name,
        style=_STYLE,
        reference=Run(script),
        candidate=Run(script, ranks=2),
        steps=2,
    )
    for name, script in _SCRIPTS.items()
)

WRONG: tuple[Wrong, ...] = ()
