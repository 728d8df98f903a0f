"""A checkup in words: what was recognised, what is seen of a step and what not, what it costs."""

from __future__ import annotations

from collections.abc import Iterator

from ttrace.core.checkup import Checkup, Sight, Watched
from ttrace.report.costs import predictions, room
from ttrace.report.numbers import counted, filled

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
_MANY = 4  # chosen: names in one line


def lines(found: Checkup) -> Iterator[tuple[str, str]]:
    """What a line is about, and what it says."""
    others = (f"{name} {version}" for name, version in found.versions.items() if name != "ttrace")
    yield "framework", f"{_ADAPTERS.get(found.adapter, found.adapter)} on {found.device}"
    yield "versions", ", ".join(others)
    yield "ranks", f"{found.ranks} of {found.world_size} recorded the step" + _unfinished(found)
    yield "mesh", ", ".join(f"{axis} {size}" for axis, size in found.axes.items()) or "none"
    yield "batch", _batch(found)
    yield "wrappers", _some(found.wrappers) or "none"
    yield (
        "optimizers",
        _some(found.optimizers) or "none that `ttrace.attach` was given made a step",
    )
    called = found.modules - len(found.never_called)
    never = f"; never called: {_some(found.never_called)}" if found.never_called else ""
    yield "modules", f"{called} of {found.modules} were called{never}"
    for sight in found.sights:
        yield _NAMES[sight.watched], _sight(sight)
    if found.inferred:
        known = f"{found.tensors - found.inferred} of {counted(found.tensors, 'tensor')}"
        yield "layouts", f"{known} say where they belong; others are placed by shape and content"
    share = f"the step took {found.seconds:.2f} s, of which recording {found.recording_seconds:.2f}"
    yield "cost", f"{share} s; {found.bytes_per_rank / 1e6:.1f} MB on disk for a rank"
    yield from (("predicted", text) for text in predictions(found))
    yield "room", room(found)
    more = "three more after a failure, and where modules quantise"
    yield "runs", f"`ttrace diff`: reference twice, candidate once; {more}"
    yield from (("problem", text) for text in found.problems)
    yield from (("note", text) for text in found.notes)


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


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    return ", ".join(names[:_MANY]) + more
