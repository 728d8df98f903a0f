"""Correct programs that raised false alarms when people first met the tool, by name.

$ python -m studies.clean --only first-contact
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from zoo.clean.case import Case
from zoo.clean.words import Dtype, OptimizerName

GROUP = "first-contact"
_PIXELS = (8, 16, 32, 64)
_SEEDS = range(1, 10)
_PRECISIONS: tuple[Dtype, ...] = ("fp32", "bf16")

_case = partial(Case, group=GROUP)


def first_contact() -> list[Case]:
    return [*_norms(), *_transformers(), *_images(), *_sequences(), *_splits()]


def _norms() -> Iterator[Case]:
    """The gradient of a norm's weight is a sum over all rows, where few of them cancel."""
    for name in ("layernorm", "layernorm-embedding"):
        for positions in (2048, 8192):
            for dtype in _PRECISIONS:
                for seed in (1, 2, 3):
                    yield _case(
                        architecture=name,
                        batch=8,
                        positions=positions,
                        dtype=dtype,
                        seed=seed,
                    )


def _transformers() -> Iterator[Case]:
    for seed in (1, 2, 3):
        gpt2 = partial(_case, architecture="hf-gpt2", width=64, optimizer="adamw", seed=seed)
        yield gpt2(batch=8, positions=1024)
        yield gpt2(batch=8, positions=1024, dtype="bf16")
        for name in ("bert", "hf-bert"):
            for dtype in _PRECISIONS:
                yield _case(
                    architecture=name,
                    batch=8,
                    positions=128,
                    dtype=dtype,
                    optimizer="adam",
                    seed=seed,
                )


def _images() -> Iterator[Case]:
    for pixels in _PIXELS:
        for seed in _SEEDS:
            # as people run it: convolutions by mkldnn; and by torch's own kernels
            for mkldnn in (False, True):
                yield _case(
                    architecture="resnet-frozen",
                    batch=8,
                    positions=pixels * pixels,
                    width=16,
                    optimizer="sgd",
                    seed=seed,
                    mkldnn=mkldnn,
                )
    adam: OptimizerName = "adam"
    for name in ("vit", "hf-vit", "unet"):
        for dtype in _PRECISIONS:
            for seed in (1, 2, 3):
                yield _case(
                    architecture=name,
                    batch=8,
                    positions=256,
                    dtype=dtype,
                    optimizer=adam,
                    seed=seed,
                )


def _sequences() -> Iterator[Case]:
    for seed in _SEEDS:
        for mkldnn in (False, True):
            yield _case(architecture="lstm", batch=8, positions=64, seed=seed, mkldnn=mkldnn)


def _splits() -> Iterator[Case]:
    for seed in (1, 2, 3):
        for dtype in _PRECISIONS:
            split = partial(_case, batch=8, positions=64, dtype=dtype, seed=seed)
            yield split(architecture="megatron", layout="tp2-by-hand")
            for name in ("gpt2", "llama"):
                yield split(architecture=name, layout="fsdp2", optimizer="muon")
