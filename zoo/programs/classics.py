"""Small programs as they stand in tutorials and first repositories, each in data parallel."""

from __future__ import annotations

from ttrace.core.blame import Blame, Phase, Stage
from zoo.programs.program import Edit, Wrong, on_ranks

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

_FROZEN = {
    "dpo": "the policy that it is compared with is frozen",
    "lora": "the weights beside the low-rank ones are frozen",
}

_TWICE = Edit(
    "tracer = ttrace.attach(\n"
    '    {"generator": generator, "critic": critic}, [generator_optimizer, critic_optimizer]\n'
    ")\n",
    "tracer = ttrace.attach(generator, generator_optimizer)\n"
    "ttrace.attach(critic, critic_optimizer)\n",
)


PROGRAMS = (
    *(
        on_ranks(name, _STYLE, script, unjudged=_FROZEN.get(name, ""))
        for name, script in _SCRIPTS.items()
    ),
    on_ranks("gan-attached-twice", _STYLE, "gan_ddp", _TWICE),
)

_LOSS = (Blame.at(Stage.LOSS, Phase.FORWARD),)
_INPUT = (Blame.at(Stage.MODEL_INPUT, Phase.INPUTS),)

WRONG = (
    Wrong(
        name="gan/labels-of-one-rank",
        program="gan",
        title="rank 1 tells its critic that fakes are real",
        edits=(Edit("critic(fake.detach()), zeros)", "critic(fake.detach()), zeros + rank)"),),
        expected=_LOSS,
    ),
    Wrong(
        name="gan/critic-not-reduced",
        program="gan",
        title="only the generator was wrapped",
        edits=(
            Edit(
                "generator, critic = DistributedDataParallel(generator), "
                "DistributedDataParallel(critic)",
                "generator = DistributedDataParallel(generator)",
            ),
        ),
        expected=(
            Blame.of("critic.0", phase=Phase.GRADIENT_REDUCTION),
            Blame.of("critic.2", phase=Phase.GRADIENT_REDUCTION),
        ),
    ),
    Wrong(
        name="gradient-penalty/weight",
        program="gradient-penalty",
        title="the penalty is divided among the ranks, and then averaged as well",
        edits=(Edit("loss + 10 *", "loss + 10 / world *"),),
        expected=_LOSS,
    ),
    Wrong(
        name="vae/same-noise",
        program="vae",
        title="every rank uses the noise of the first",
        edits=(Edit("x[mine], noise[mine]", "x[mine], noise[: 8 // world]"),),
        expected=_INPUT,
    ),
    Wrong(
        name="word-lm/clip",
        program="word-lm",
        title="the clip value was scaled with the ranks",
        edits=(Edit("model.parameters(), 0.25)", "model.parameters(), 0.25 / world)"),),
        expected=(Blame.at(Stage.GRADIENT_CLIPPING, Phase.CLIP),),
    ),
    Wrong(
        name="siamese/gathered-without-gradient",
        program="siamese",
        title="what the features of a rank do to the losses of others is lost",
        edits=(Edit("        dist.all_reduce(grad)\n", ""),),
        expected=(Blame.at(Stage.LOSS, Phase.BACKWARD),),
    ),
    Wrong(
        name="forward-forward/rate-of-one-layer",
        program="forward-forward",
        title="the rate of one layer was scaled with the ranks",
        edits=(
            Edit(
                "[torch.optim.Adam(layer.parameters(), lr=1e-2) for layer in layers]",
                "[torch.optim.Adam(layer.parameters(), lr=1e-2 * world**n) "
                "for n, layer in enumerate(layers)]",
            ),
        ),
        expected=(Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE),),
    ),
    Wrong(
        name="actor-critic/local-advantages",
        program="actor-critic",
        title="advantages are normalised by the samples of a rank",
        edits=(Edit("        dist.all_reduce(total)\n", "        total *= world\n"),),
        expected=_LOSS,
    ),
    Wrong(
        name="accumulated/not-reduced",
        program="accumulated",
        title="no microbatch is reduced",
        edits=(
            Edit(
                "        (F.mse_loss(model(x[second])",
                "        with model.no_sync():\n            (F.mse_loss(model(x[second])",
            ),
        ),
        expected=(Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),),
    ),
    Wrong(
        name="dpo/temperature",
        program="dpo",
        title="preferences count twice as much on rank 1",
        edits=(Edit("F.logsigmoid(0.1 *", "F.logsigmoid(0.1 * (1 + rank) *"),),
        expected=_LOSS,
    ),
    Wrong(
        name="lora/twice",
        program="lora",
        title="the low-rank part of the last layer is added once instead of twice",
        edits=(
            Edit(
                "return self.linear(x) + 2 * self.up(self.down(x))",
                "return self.linear(x) + (1 if x.shape[1] == 32 else 2) * self.up(self.down(x))",
            ),
        ),
        expected=(Blame.of("2", phase=Phase.FORWARD),),
    ),
    Wrong(
        name="microbatch-steps/first-lost",
        program="microbatch-steps",
        title="gradients of the first microbatch are dropped",
        edits=(Edit("        (F.mse_loss", "        optimizer.zero_grad()\n        (F.mse_loss"),),
        expected=(Blame.at(Stage.GRADIENT_ACCUMULATION, Phase.MAIN_GRADIENT),),
    ),
)
