"""What tracing costs: a training step without TTrace, with it attached but off, and recording.

$ python -m benchmarks.capture
{"off_vs_plain": 1.00, "on_vs_off": 1.31, ...}
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import torch

import ttrace
from ttrace.capture.settings import Settings, without_settings
from ttrace.demo.model import ModelConfig, build_model

_ROUNDS = 7  # chosen: interleaved rounds, the best of each counts
_STEPS = 3


def run() -> dict[str, object]:
    """CPU seconds of a step in each mode, interleaved, and their ratios."""
    torch.set_num_threads(1)
    best = {"plain": float("inf"), "off": float("inf"), "on": float("inf")}
    size_bytes = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(_ROUNDS):
            for mode in best:
                trace = Path(folder) / f"{mode}-{number}"
                best[mode] = min(best[mode], _seconds_of_a_step(mode, trace))
                size_bytes = (
                    sum(f.stat().st_size for f in trace.rglob("*.safetensors")) or size_bytes
                )
    return {
        "plain_ms": best["plain"] * 1e3,
        "off_vs_plain": best["off"] / best["plain"],
        "on_vs_off": best["on"] / best["off"],
        "hooks_installed_when_off": _hooks_when_off(),
        "recorded_mb_a_step": size_bytes / _STEPS / 1e6,
    }


def _seconds_of_a_step(mode: str, trace: Path) -> float:
    model = build_model(_config(), seed=0, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(256, (8, 64))
    environment = without_settings(os.environ)
    if mode == "on":
        environment |= Settings(folder=trace, steps=_STEPS).to_environment()
    with mock.patch.dict(os.environ, environment, clear=True):
        tracer = None if mode == "plain" else ttrace.attach(model, optimizer)
    start = time.process_time()
    for _ in range(_STEPS):
        with nullcontext() if tracer is None else tracer.step():
            logits = model(tokens)
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return (time.process_time() - start) / _STEPS


def _hooks_when_off() -> int:
    model = build_model(_config(), seed=0, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters())
    ttrace.attach(model, optimizer)
    return sum(
        len(hooks)
        for module in model.modules()
        for name, hooks in vars(module).items()
        if name.endswith("_hooks") and "state_dict" not in name
    )


def _config() -> ModelConfig:
    return ModelConfig(dim=256, n_layers=4)


if __name__ == "__main__":
    print(json.dumps(run(), indent=1))
