"""torchtitan on CPU: what stands in while it is imported is gone afterwards."""

import importlib.util
import subprocess
import sys

import pytest

from zoo.trainers.titan_cpu import NEEDS

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, NEEDS)), reason="torchtitan is not installed"
    ),
]

SCRIPT = """
import importlib.util, sys, torch
before = torch.compile, torch._utils._get_available_device_type
known = {name: importlib.util.find_spec(name) is not None for name in ("triton", "datasets")}
from zoo.trainers import titan_cpu
titan_cpu.install()
import torchtitan.tools.utils as utils
assert utils.device_type == "cpu"
assert before == (torch.compile, torch._utils._get_available_device_type)
for name, installed in known.items():
    assert installed or name not in sys.modules, name
    assert (importlib.util.find_spec(name) is not None) == installed, name
from torch.utils._triton import has_triton_package
assert has_triton_package() == known["triton"]
"""


def test_nothing_that_stands_in_outlives_the_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
