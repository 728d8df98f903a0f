"""Every yardstick on every model; writes docs/reference/yardsticks.md.

    $ python -m studies.yardsticks

Minutes on one core.
"""

from __future__ import annotations

from pathlib import Path

import torch

from studies.yardsticks.kinds import YARDSTICKS
from studies.yardsticks.page import page
from studies.yardsticks.ratios import DTYPES, Measured, Ratio, largest, ratio
from studies.yardsticks.subjects import CASES, Case, gradients, in_parts

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "yardsticks.md"
SEEDS = (1, 2, 3)
PARTS = (2, 4)


def main() -> None:
    torch.set_num_threads(1)
    found = []
    for name, dtype in DTYPES.items():
        # Low precision without oneDNN, whose kernels differ from one processor to the next.
        torch.backends.mkldnn.set_flags(dtype == torch.float32)
        for case in CASES:
            found.append(measured(case, name))
            shown = " ".join(
                "n/a" if each is None else f"{each.norm:.2f}/{each.element:.2f}"
                for each in found[-1].ratios.values()
            )
            print(f"{name} {case.name}: {shown}", flush=True)
    PAGE.write_text(page(found))


def measured(case: Case, dtype: str) -> Measured:
    """The largest ratio over seeds, parts and parameters."""
    ratios: dict[str, list[Ratio]] = {yardstick.name: [] for yardstick in YARDSTICKS}
    for seed in SEEDS:
        subject = case.subject(DTYPES[dtype], seed)
        reference = gradients(subject.model, subject.batch)
        candidates = [in_parts(subject, parts) for parts in PARTS]
        for yardstick in YARDSTICKS:
            if subject.independent or not yardstick.splits_batch:
                off = yardstick.measure(subject, seed)
                ratios[yardstick.name] += [ratio(reference, each, off) for each in candidates]
    return Measured(
        case=case, dtype=dtype, ratios={name: largest(found) for name, found in ratios.items()}
    )


if __name__ == "__main__":
    main()
