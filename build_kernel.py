"""Builds src/ttrace/measure/_kernel.so along with a wheel or an editable install.

Enters: a C compiler, if there is one ($CC, else cc). Leaves: the library beside its source, and a
wheel for this platform that holds it. Without a compiler the wheel is pure and ttrace
computes in numpy. `python build_kernel.py` makes the library of a clone anew and nothing else.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

SOURCES = ("src/ttrace/measure/kernel.c", "src/ttrace/measure/sketch.c")
LIBRARY = "src/ttrace/measure/_kernel.so"
IN_WHEEL = "ttrace/measure/_kernel.so"

# kernel.c tells why; -ffp-contract=fast is what gcc does by default and clang, in part, does not.
FLAGS = ("-std=c11", "-O3", "-fopenmp-simd", "-ffp-contract=fast", "-fPIC", "-shared")


def compile_kernel(sources: Sequence[Path], library: Path) -> str | None:
    """The reason why there is no library, or None."""
    command = shlex.split(os.environ.get("CC", "cc"))
    if not command or shutil.which(command[0]) is None:
        return f"no C compiler ({' '.join(command)})"
    # Another build of the same tree may run, or a process may have the old library mapped: a rename
    # replaces it whole.
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".build-") as folder:
        fresh = Path(folder) / library.name
        done = subprocess.run(
            [*command, *FLAGS, "-o", str(fresh), *map(str, sources)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            return f"the C compiler failed: {done.stderr.strip()}"
        fresh.replace(library)
    return None


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling; named in pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        library = Path(self.root, LIBRARY)
        problem = compile_kernel([Path(self.root, source) for source in SOURCES], library)
        if problem is not None:
            # A library of an older build must not go with newer sources.
            library.unlink(missing_ok=True)
            self.app.display_warning(
                f"{problem}: ttrace will compare in numpy, several times slower"
            )
            return
        if version == "standard":
            # Git ignores the library, and hatchling what Git ignores, unless it is forced in.
            build_data["force_include"][str(library)] = IN_WHEEL
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{next(platform_tags())}"


if __name__ == "__main__":
    here = Path(__file__).parent
    if problem := compile_kernel([here / source for source in SOURCES], here / LIBRARY):
        raise SystemExit(problem)
