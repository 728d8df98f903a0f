"""Measured error, predicted tolerance and bound against depth, from 4 to 64 layers.

$ python -m studies.power.depth --out studies/power/depth.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from studies.power.methods import comparable, depth_bound
from studies.power.runs import Model, SharedReferences, experiment, prepare
from ttrace.core.results import TensorResult

DEPTHS = (4, 8, 16, 32, 64)


def measure(dtype: str, depth: int, folder: Path) -> dict[str, Any]:
    """The last output and the gradient of the first weight, split in two against whole."""
    model = Model(seed=1, dtype=dtype, layers=depth, dim=64)
    asked = experiment(model, "split2", folder / model.name, SharedReferences(None))
    asked.folder.mkdir()
    result = asked.compare()
    found = {str(r.id): r for r in result.tensors if comparable(r)}
    return {
        "forward": _point(found[f"step0/layers.{depth - 1}:output.0"], depth),
        "backward": _point(found["step0/layers.0.attention.wq:main_grad.weight"], depth),
    }


def _point(result: TensorResult, layers: int) -> dict[str, float]:
    assert result.statistics is not None
    assert result.tolerance is not None
    measured = result.statistics.relative_error
    return {
        "measured": measured,
        "tolerance": result.tolerance.error_norm / result.statistics.reference_norm,
        "bound": measured / depth_bound(result, layers),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("depth.json"))
    parser.add_argument("--depths", default=",".join(map(str, DEPTHS)))
    options = parser.parse_args()
    prepare()
    points: dict[str, dict[str, Any]] = {"float32": {}, "bfloat16": {}}
    with tempfile.TemporaryDirectory() as name:
        for depth in map(int, options.depths.split(",")):
            for dtype, found in points.items():
                found[str(depth)] = measure(dtype, depth, Path(name))
                options.out.write_text(json.dumps(points, indent=1) + "\n")
                print(dtype, depth, found[str(depth)], flush=True)


if __name__ == "__main__":
    main()
