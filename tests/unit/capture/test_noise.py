from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.capturing import Recorded, attach, record
from ttrace.adapters.registry import find_adapter
from ttrace.capture.noise import Noise

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def noise(seed: int = 1) -> Noise:
    return Noise(seed, find_adapter(nn.Linear(1, 1)))


def values(dtype: torch.dtype) -> Tensor:
    """Both signs, several binades, and the awkward ones."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(4096, generator=generator, dtype=torch.float64) * torch.logspace(
        -3, 3, 4096
    )
    return torch.cat([spread, torch.tensor([0.0, -0.0, 1.0, 2.0, -4.0])]).to(dtype)


class TestValues:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_each_moves_by_at_most_one_epsilon_and_its_own_rounding(
        self, dtype: torch.dtype
    ) -> None:
        x = values(dtype)
        exact, moved = x.double(), noise().on(x, "key").double()
        eps = torch.finfo(dtype).eps
        # 1 for the noise, 1/2 for the rounding of the result, a little for that of the product.
        size = exact.abs().clamp(min=torch.finfo(dtype).smallest_normal)
        assert bool(((moved - exact).abs() <= 1.51 * eps * size).all())
        assert not moved[exact == 0].any()
        assert (moved != exact).double().mean() > 0.3

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_it_has_no_bias(self, dtype: torch.dtype) -> None:
        """The mean of 4096 uniform numbers in [-1, 1] has a deviation of 0.009."""
        x = torch.full((4096,), 1.5, dtype=dtype)
        shift = (noise().on(x, "key").double() - 1.5) / (1.5 * torch.finfo(dtype).eps)
        assert abs(shift.mean()) < 0.05

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_of_other_kernels_has_a_part_that_all_elements_share(self, dtype: torch.dtype) -> None:
        x = torch.full((2, 4096), 1.5, dtype=dtype)
        x[1] *= -1
        eps = torch.finfo(dtype).eps
        adapter = find_adapter(nn.Linear(1, 1))
        shifts = [
            ((Noise(seed, adapter, other_kernels=True).on(x, "key") - x).double() / (1.5 * eps))
            for seed in range(8)
        ]
        means = torch.stack([shift.mean(1) for shift in shifts])
        assert bool((means.abs() <= 2.05).all())
        assert means.std(0).min() > 0.3
        # positive and negative numbers need not move to the same side
        assert {bool(up * down > 0) for up, down in means.tolist()} == {True, False}

    def test_below_the_normal_numbers_it_is_a_constant_unit(self) -> None:
        unit = 2.0**-24
        x = torch.tensor([0.0, 3 * unit, 40 * unit] * 100, dtype=torch.float16)
        moved = (noise().on(x, "key").double() - x.double()) / unit
        assert set(moved.tolist()) == {-1.0, 0.0, 1.0}
        assert not moved[x == 0].any()

    def test_one_seed_and_key_give_the_same_noise(self) -> None:
        x = values(torch.float32)
        assert torch.equal(noise(1).on(x, "key"), noise(1).on(x, "key"))

    def test_another_seed_or_key_gives_other_noise(self) -> None:
        x = values(torch.float32)
        assert not torch.equal(noise(1).on(x, "key"), noise(2).on(x, "key"))
        assert not torch.equal(noise(1).on(x, "key"), noise(1).on(x, "other"))

    @pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float8_e4m3fn])
    def test_types_without_rounding_noise_are_handed_back(self, dtype: torch.dtype) -> None:
        x = torch.ones(4).to(dtype)
        assert noise().on(x, "key") is x

    def test_what_is_not_finite_stays_so(self) -> None:
        x = torch.tensor([float("inf"), float("-inf"), float("nan")])
        moved = noise().on(x, "key")
        assert not bool(moved.isfinite().any())

    def test_gradients_pass_unchanged(self) -> None:
        x = torch.ones(8, requires_grad=True)
        noise().on(x, "key").backward(torch.arange(8.0))
        assert x.grad is not None
        assert torch.equal(x.grad, torch.arange(8.0))


class TestRange:
    def test_what_is_at_most_one_stays_so(self) -> None:
        """BCELoss refuses 1 + eps, acos makes it NaN."""
        for edge in (1.0, -1.0):
            x = torch.full((1000,), edge)
            x[0] = 0.3
            moved = noise().on(x, "key")
            assert bool((moved.abs() <= 1).all())
            assert not torch.equal(moved, x)

    def test_what_is_not_negative_stays_so(self) -> None:
        x = values(torch.float32).relu()
        moved = noise().on(x, "key")
        assert bool((moved >= 0).all())
        assert torch.equal(moved == 0, x == 0)

    def test_infinities_stay_where_they_are(self) -> None:
        x = values(torch.float32)
        x[::2] = -torch.inf
        moved = noise().on(x, "key")
        assert torch.equal(moved.isinf(), x.isinf())
        assert not bool(moved.isnan().any())

    @pytest.mark.parametrize("x", [torch.arange(9.0), torch.tensor([0.0, -torch.inf])])
    def test_whole_numbers_and_masks_stay_as_they_are(self, x: Tensor) -> None:
        assert torch.equal(noise().on(x, "key"), x)

    def test_numbers_too_large_for_a_fraction_are_not_taken_as_whole(self) -> None:
        x = torch.arange(128.0, 256.0).bfloat16()
        assert not torch.equal(noise().on(x, "key"), x)


class TestWeights:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_those_that_sum_in_their_own_type_are_shifted(self, dtype: torch.dtype) -> None:
        weight = nn.Parameter(values(dtype))
        before = weight.detach().clone()
        assert not torch.equal(noise().on_weight(weight, "key"), before)
        assert torch.equal(weight, before)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_those_that_sum_in_a_wider_type_are_not(self, dtype: torch.dtype) -> None:
        weight = nn.Parameter(values(dtype))
        assert torch.equal(noise().on_weight(weight, "key"), weight)


class Run:
    """One training step with or without noise; what was seen inside of it."""

    at_update: Tensor

    def __init__(self, folder: Path, seed: int | None, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.model: Any = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)).to(dtype)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.before = self.weight()
        self.trace = record(folder, self.model, self.step, self.optimizer, noise_seed=seed)
        self.random_state = torch.get_rng_state()

    def weight(self) -> Tensor:
        return self.model[0].weight.detach().clone()

    def step(self) -> None:
        self.during = self.weight()
        self.optimizer.register_step_pre_hook(lambda *_: setattr(self, "at_update", self.weight()))
        self.model(torch.ones(4, 8, dtype=self.before.dtype)).square().mean().backward()
        self.optimizer.step()


class TestRun:
    @pytest.fixture
    def reference(self, tmp_path: Path) -> Run:
        return Run(tmp_path / "reference", None)

    @pytest.fixture
    def noisy(self, tmp_path: Path) -> Run:
        return Run(tmp_path / "noisy", 1)

    def test_the_loss_moves_a_little(self, reference: Run, tmp_path: Path) -> None:
        """Rounding may bring one scalar back to where it was, but not for every seed."""
        loss = reference.trace.value(":loss")
        runs = [Run(tmp_path / str(seed), seed) for seed in range(4)]
        moved = torch.stack([run.trace.value(":loss") for run in runs])
        assert bool((moved != loss).any())
        torch.testing.assert_close(moved, loss.expand(4), rtol=1e-5, atol=0)

    def test_every_gradient_moves_a_little(self, reference: Run, noisy: Run) -> None:
        for name in ("2:grad_output.0", "0:grad_output.0", "0:main_grad.weight"):
            ours, theirs = reference.trace.value(name), noisy.trace.value(name)
            assert not torch.equal(ours, theirs), name
            torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-6)

    def test_one_seed_gives_one_run(self, noisy: Run, tmp_path: Path) -> None:
        again = Run(tmp_path / "again", 1)
        assert digests(again.trace) == digests(noisy.trace)

    def test_another_seed_gives_another_run(self, noisy: Run, tmp_path: Path) -> None:
        other = Run(tmp_path / "other", 2)
        ours, theirs = (run.trace.value(":output.0") for run in (noisy, other))
        assert not torch.equal(ours, theirs)

    def test_the_random_numbers_of_the_run_are_untouched(self, reference: Run, noisy: Run) -> None:
        assert torch.equal(reference.random_state, noisy.random_state)
        dropped = [run.trace.value("1:output.0") == 0 for run in (reference, noisy)]
        assert torch.equal(*dropped)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_parameters_are_exact_throughout(self, dtype: torch.dtype, tmp_path: Path) -> None:
        noisy = Run(tmp_path, 1, dtype)
        assert torch.equal(noisy.during, noisy.before)
        assert torch.equal(noisy.at_update, noisy.before)
        assert torch.equal(noisy.trace.value("0:param.weight"), noisy.before)
        assert torch.equal(noisy.trace.value("0:param_after.weight"), noisy.weight())
        assert not torch.equal(noisy.weight(), noisy.before)

    def test_an_update_by_hand_is_kept(self, tmp_path: Path) -> None:
        model = nn.Linear(4, 4)
        before = model.weight.detach().clone()

        def step() -> None:
            model(torch.rand(3, 4)).square().mean().backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.data.add_(parameter.grad, alpha=-0.1)

        trace = record(tmp_path, model, step, noise_seed=1)
        assert not torch.equal(model.weight, before)
        assert torch.equal(trace.value(":param_after.weight"), model.weight)

    def test_the_trace_says_that_it_is_perturbed(self, reference: Run, noisy: Run) -> None:
        assert noisy.trace.trace.ranks[0].info.noise_seed == 1
        assert reference.trace.trace.ranks[0].info.noise_seed is None

    def test_what_is_recorded_is_what_the_run_used(self, noisy: Run) -> None:
        trace = noisy.trace
        assert trace.record("2:input.0").same_as == trace.record("1:output.0").id
        assert trace.record(":output.0").same_as == trace.record("2:output.0").id
        assert (trace.summary.faults, trace.summary.unfired) == ((), ())

    def test_weights_are_exact_again_after_a_step_that_raised(self, tmp_path: Path) -> None:
        model = nn.Linear(4, 4)
        before = model.weight.detach().clone()
        tracer = attach(tmp_path, model, noise_seed=1)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), tracer.step():
            model(torch.ones(2, 3) * model.weight.sum())
        assert torch.equal(model.weight, before)

    def test_without_an_optimizer_weights_are_exact_after_the_step(self, tmp_path: Path) -> None:
        model = nn.Linear(4, 4)
        before = model.weight.detach().clone()
        record(tmp_path, model, lambda: model(torch.ones(2, 4)).sum().backward(), noise_seed=1)
        assert torch.equal(model.weight, before)


def digests(trace: Recorded) -> list[tuple[str, str]]:
    records = trace.trace.ranks[0].records
    return [(str(each.id), each.location.xxh3 if each.location else "") for each in records]
