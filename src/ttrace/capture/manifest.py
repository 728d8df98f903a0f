"""What a rank says of itself when tracing starts: the manifest of its folder.

Enters: an adapter. Leaves: the rank's coordinates, its modules with their sources, versions, and
the facts in which two runs may differ. The commit is read from .git without running git.
"""

from __future__ import annotations

import inspect
import platform
import re
import sys
from importlib import metadata
from pathlib import Path

import torch

from ttrace.adapters.base import Adapter
from ttrace.capture.code import shortest
from ttrace.capture.settings import Settings
from ttrace.core.record import ModuleInfo, RankInfo

# Distributions, whose packages are called the same but for "-".
_FRAMEWORKS = (
    *("accelerate", "deepspeed", "lightning", "megatron-core", "peft", "pytorch_lightning"),
    *("torchtitan", "transformers"),
)
_HASH = re.compile(r"[0-9a-f]{40,64}")


def describe_rank(adapter: Adapter, settings: Settings) -> RankInfo:
    """The manifest of this rank."""
    coordinates = adapter.coordinates()
    return RankInfo(
        rank=coordinates.rank,
        world_size=coordinates.world_size,
        axes=coordinates.axes,
        batch=coordinates.batch,
        loss_parts=coordinates.loss_parts,
        adapter=adapter.name,
        device=_device(adapter),
        noise_seed=settings.noise_seed,
        other_kernels=settings.other_kernels,
        modules=tuple(
            _describe(path, adapter.written_class(module)) for path, module in adapter.modules()
        ),
        versions=_versions(),
        facts=_facts() | dict(adapter.precision()),
        vocabulary=coordinates.vocabulary,
    )


def wrappers_of(adapter: Adapter) -> tuple[str, ...]:
    """Classes that stand around the modules that people wrote, or in place of theirs."""
    written = {id(module): adapter.written_class(module) for _, module in adapter.modules()}
    met = (module for root in adapter.roots for module in root.modules())
    found = (type(each) for each in met if written.get(id(each)) is not type(each))
    return tuple(dict.fromkeys(kind.__qualname__ for kind in found))


def checked_out(folder: Path) -> str | None:
    """The commit that is checked out around a folder.

    None where there is no repository, or where it is kept in a form that is not plain files.
    """
    for parent in (folder, *folder.parents):
        entry = parent / ".git"
        if entry.exists():
            try:
                return _head(entry)
            except (OSError, UnicodeDecodeError):
                return None
    return None


def _head(entry: Path) -> str | None:
    # A worktree has a file that names its own folder, which names the shared one.
    git = entry
    if entry.is_file():
        git = entry.parent / entry.read_text().removeprefix("gitdir:").strip()
    head = (git / "HEAD").read_text().strip()
    if _HASH.fullmatch(head):
        return head
    name = head.removeprefix("ref:").strip()
    shared = git / "commondir"
    common = git / shared.read_text().strip() if shared.exists() else git
    for place in (git, common):
        if (place / name).is_file():
            found = (place / name).read_text().strip()
            return found if _HASH.fullmatch(found) else None
    packed = common / "packed-refs"
    lines = packed.read_text().splitlines() if packed.exists() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)


def _device(adapter: Adapter) -> str:
    first = next(adapter.parameters(), None)
    device = torch.device("cpu") if first is None else first.tensor.device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _versions() -> dict[str, str]:
    """Of what computes, and of the frameworks that the script has imported."""
    frameworks = (name for name in _FRAMEWORKS if name.replace("-", ".") in sys.modules)
    return {
        "ttrace": metadata.version("ttrace") if _installed("ttrace") else "source",
        "torch": torch.__version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in frameworks if _installed(name)},
    }


def _facts() -> dict[str, str]:
    """Settings, other than versions, in which two runs may differ."""
    found = {
        "torch seed": str(torch.initial_seed()),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "deterministic algorithms": "yes" if torch.are_deterministic_algorithms_enabled() else "no",
    }
    commit = checked_out(Path.cwd())
    return found if commit is None else found | {"git commit": commit}


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _describe(path: str, kind: type) -> ModuleInfo:
    try:
        file = inspect.getsourcefile(kind)
        line = inspect.getsourcelines(vars(kind).get("forward", kind))[1]
        source = f"{shortest(file)}:{line}" if file else ""
    except (OSError, TypeError):
        source = ""
    return ModuleInfo(path=path, class_name=kind.__qualname__, source=source)
