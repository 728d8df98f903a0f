"""A run that is watched for codes: which module made which, and no number of it changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from ttrace.adapters.base import Adapter
from ttrace.capture.noise import Noise
from ttrace.capture.regroup import CodesWatch, Regrouping
from ttrace.core.quantised import WHOLE_NUMBERS, Quantising

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
X = torch.randn(64, generator=torch.Generator().manual_seed(1))


class Runs:
    """Which module runs."""

    def __init__(self) -> None:
        self.module: str | None = None

    def __call__(self) -> str | None:
        return self.module


def quantise(runs: Runs) -> list[Tensor]:
    found = []
    for module, dtypes in {"a": [E4M3, E4M3, E5M2], "b": [E4M3], None: [E5M2]}.items():
        runs.module = module
        found += [X.to(dtype).float() for dtype in dtypes]
    runs.module = "c"
    return [*found, torch.round(X), X.bfloat16(), X * 2]


TOLD = (
    Quantising(module="a", codes=("float8_e4m3fn", "float8_e5m2")),
    Quantising(module="b", codes=("float8_e4m3fn",)),
    Quantising(module="c", codes=(WHOLE_NUMBERS,)),
)


def test_every_module_is_told_with_the_formats_of_its_codes() -> None:
    runs = Runs()
    with CodesWatch(runs) as watch:
        quantise(runs)
    assert watch.quantising() == TOLD


def test_a_run_with_noise_tells_the_same() -> None:
    runs = Runs()
    with Regrouping(Noise(1, Adapter(nn.Identity())), current=runs) as mode:
        quantise(runs)
    assert mode.quantising() == TOLD


def test_numbers_stay() -> None:
    plain = quantise(Runs())
    with CodesWatch(Runs()):
        watched = quantise(Runs())
    assert all(one.equal(other) for one, other in zip(plain, watched, strict=True))


def test_a_fault_is_told_and_the_cast_is_made() -> None:
    def fails() -> str:
        raise ValueError("nobody knows")

    faults: list[Exception] = []
    with CodesWatch(fails, told=lambda _, error: faults.append(error)):
        found = X.to(E4M3)
    assert found.float().equal(X.to(E4M3).float())
    assert [str(error) for error in faults] == ["nobody knows"]


@pytest.mark.parametrize("is_compiled", [True, False])
def test_of_compiled_modules_nothing_is_told(is_compiled: bool) -> None:
    model: Sequence[nn.Module] = [nn.Sequential(nn.Linear(2, 2))]
    if is_compiled:
        model[0].compile(backend="eager")
    runs = Runs()
    with CodesWatch(runs, model) as watch:
        quantise(runs)
    assert (watch.quantising() is None) is is_compiled
