"""A checkup in words: what was recognised, what is seen of a step and what not, what it costs.

recorded 1.2 GB in 1 step of 0.41 s; hooks took 0.22 s, 54% of it
3 runs (reference, perturbed, candidate) take about 60 MB, 6 MB as fingerprints, and 20 s; ...
"""

from __future__ import annotations

from collections.abc import Iterator

from ttrace.core.checkup import AS_TRACED, Checkup, RunCost, Sight, StatedRun, Watched, predict_run
from ttrace.report.numbers import counted, filled, in_bytes, one_digit
from ttrace.report.terminal import few
from ttrace.trace.progress import RecordingCost

_NAMES = {
    Watched.VALUES: "forward",
    Watched.GRADIENTS: "backward",
    Watched.LOCAL: "gradients",
    Watched.REDUCED: "reduced",
    Watched.NORM: "norm",
    Watched.STATE: "state",
    Watched.UPDATES: "updates",
}
_SEEN = {
    Watched.VALUES: "outputs of modules: {seen}",
    Watched.GRADIENTS: "gradients of inputs and outputs: {seen}",
    Watched.LOCAL: "of {seen} of {expected:parameter}, on each rank, before any reduction",
    Watched.REDUCED: "of {seen} of {expected:parameter}, as the optimizer gets them",
    Watched.NORM: "the one that gradients are clipped by",
    Watched.STATE: "of {seen} of {expected:parameter}",
    Watched.UPDATES: "of {seen} of {expected:parameter}",
}
_UNSEEN = {
    Watched.VALUES: "none: the model is not called inside of the step, or it is not the one that "
    "was attached",
    Watched.GRADIENTS: "none: backward does not run inside of the step",
    Watched.LOCAL: "none: backward does not run inside of the step, or every parameter is frozen",
    Watched.REDUCED: "none: no parameter has a gradient when the optimizer begins its step",
    Watched.NORM: "none: gradients are not clipped, or by code of the script's own",
    Watched.STATE: "none: the optimizer keeps none, or was not given to `ttrace.attach`",
    Watched.UPDATES: "none: give the optimizer to `ttrace.attach`, and let it step before the step "
    "ends",
}
_ADAPTERS = {
    "native": "PyTorch",
    "megatron": "Megatron-Core",
    "deepspeed": "DeepSpeed",
}
_RUNS, _MOST_RUNS = 3, 6  # of a comparison, and of one that fails and is isolated
_DURATIONS = {"days": 86400, "hours": 3600, "min": 60}


def lines(found: Checkup) -> Iterator[tuple[str, str]]:
    """What a line is about, and what it says."""
    yield from _recognised(found)
    yield from ((_NAMES[sight.watched], _sight(sight)) for sight in found.sights)
    if found.inferred:
        known = f"{found.tensors - found.inferred} of {counted(found.tensors, 'tensor')}"
        yield "layouts", f"{known} say where they belong; others are placed by shape and content"
    share = f"the step took {found.seconds:.2f} s, of which recording {found.recording_seconds:.2f}"
    yield "cost", f"{share} s; {found.bytes_per_rank / 1e6:.1f} MB on disk for a rank"
    yield from (("predicted", text) for text in predictions(found))
    yield from (("diff", text) for text in diff_costs(found))
    yield from (("problem", text) for text in found.problems)
    yield from (("note", text) for text in found.notes)


def _recognised(found: Checkup) -> Iterator[tuple[str, str]]:
    """The framework, the ranks, and what of the script's objects was found."""
    others = (f"{name} {version}" for name, version in found.versions.items() if name != "ttrace")
    yield "framework", f"{_ADAPTERS.get(found.adapter, found.adapter)} on {found.device}"
    yield "versions", ", ".join(others)
    yield "ranks", f"{found.ranks} of {found.world_size} recorded the step" + _unfinished(found)
    yield "mesh", ", ".join(f"{axis} {size}" for axis, size in found.axes.items()) or "none"
    yield "batch", _batch(found)
    yield "wrappers", few(found.wrappers) or "none"
    yield (
        "optimizers",
        few(found.optimizers) or "none that `ttrace.attach` was given made a step",
    )
    called = found.modules - len(found.never_called)
    never = f"; never called: {few(found.never_called)}" if found.never_called else ""
    yield "modules", f"{called} of {found.modules} were called{never}"


def verdict(found: Checkup) -> str:
    """Whether a comparison is worth its time."""
    if found.is_whole:
        return "READY: everything of this step is seen; compare it with `ttrace diff`"
    unseen = ", ".join(_NAMES[watched] for watched in found.unseen)
    why = [
        f"not all is seen ({unseen})" if unseen else "",
        counted(found.world_size - found.ranks, "rank is missing/ranks are missing")
        if found.ranks != found.world_size
        else "",
        "ranks did not end their trace" if found.unfinished else "",
        "something could not be recorded" if found.problems else "",
    ]
    return f"NOT READY: {', '.join(filter(None, why))}; the lines above say what"


def _sight(sight: Sight) -> str:
    said = _SEEN if sight.seen else _UNSEEN
    return filled(said[sight.watched], seen=sight.seen, expected=sight.expected)


def _unfinished(found: Checkup) -> str:
    ranks = ", ".join(map(str, found.unfinished))
    return f"; without an end: {ranks}" if ranks else ""


def _batch(found: Checkup) -> str:
    if found.batch_parts is None:
        return "who has which samples is found by their content"
    if found.batch_parts == 1:
        return "whole on every rank"
    return f"divided among {found.batch_parts} ranks"


def cost_line(cost: RecordingCost) -> str:
    steps = f"{counted(cost.steps, 'step')}{' of' if cost.steps == 1 else ', the last of'}"
    took = f"hooks took {_seconds(cost.hook_seconds)}, {cost.share:.0%} of it"
    size = in_bytes(cost.size_bytes)
    return f"recorded {size} in {steps} {_seconds(cost.step_seconds)}; {took}"


def short_cost(cost: RecordingCost) -> str:
    """The same as a part of another sentence."""
    return f"{in_bytes(cost.size_bytes)}, hooks {cost.share:.0%} of the step"


def predictions(found: Checkup) -> Iterator[str]:
    """What a recorded step of this command takes, in each form that tensors are recorded in."""
    whole, small = in_bytes(found.size_bytes), in_bytes(found.fingerprint_bytes)
    yield f"full tensors: a step takes {whole} of all ranks, and {_seconds(found.seconds)}"
    yield f"fingerprints (--capture auto): {small} of all ranks"


def diff_costs(found: Checkup, stated: StatedRun | None = None) -> Iterator[str]:
    """What all runs of a `ttrace diff` take, each of them taken to be like the traced one."""
    cost = predict_run(found, stated or AS_TRACED)
    size, small = _about(_RUNS * _full_bytes(cost)), _about(_RUNS * _fingerprint_bytes(cost))
    if stated is not None:
        of_rank = f"{_about(cost.bytes_per_rank)}, or {_about(cost.fingerprint_bytes_per_rank)}"
        yield f"{_sizes(found, cost)}: in a run a rank records about {of_rank} as fingerprints"
    yield (
        f"{_RUNS} runs (reference, perturbed, candidate) take about {size}, or {small} as "
        f"fingerprints, and {_duration(_RUNS * cost.seconds)}"
    )
    yield (
        f"{_MOST_RUNS - _RUNS} more of full tensors, after a failure and where modules quantise, "
        f"take as much again; {room(found, cost)}"
    )


def room(found: Checkup, cost: RunCost) -> str:
    """Whether a comparison fits on the disk; a failure leaves the traces of all its runs there."""
    free = f"{in_bytes(found.free_bytes)} are free"
    is_short = _MOST_RUNS * _full_bytes(cost) > found.free_bytes
    return free + ("; too little: choose another disk with --out" if is_short else "")


def _sizes(found: Checkup, cost: RunCost) -> str:
    layers = f", {counted(cost.layers, 'layer')} ({found.layers} traced)" if cost.layers else ""
    return f"{counted(cost.ranks, 'rank')}{layers}, {counted(cost.steps, 'step')}"


def _full_bytes(cost: RunCost) -> float:
    return cost.bytes_per_rank * cost.ranks


def _fingerprint_bytes(cost: RunCost) -> float:
    return cost.fingerprint_bytes_per_rank * cost.ranks


def _about(size_bytes: float) -> str:
    return in_bytes(one_digit(size_bytes))


def _duration(seconds: float) -> str:
    """0.3 s, 40 s, 8 min, 3 hours: one digit of the unit that has at least two of it."""
    for name, size in _DURATIONS.items():
        if seconds >= 2 * size:
            return f"{one_digit(seconds / size):,g} {name}"
    return f"{one_digit(seconds):g} s"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
