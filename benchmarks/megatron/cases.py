"""What is tried: correct layouts in fp32 and bf16, and bugs, each with its correct twin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ttrace.errors import UsageError
from ttrace.lab.run import Function
from zoo.bug import Family
from zoo.megatron.training import alone, on_ranks
from zoo.registry import bugs

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "TP2": (2, {"tp": 2}),
    "TP2 SP": (2, {"tp": 2, "sp": True}),
    "TP2 untied": (2, {"tp": 2, "untied": True}),
    "TP4, 4 groups of queries": (4, {"tp": 4, "groups": 4}),
    "DP2": (2, {}),
    # Megatron overlaps from the second step on, when it has seen the order of gradients.
    "DP2 overlapped, 2 steps": (2, {"overlap": True, "steps": 2}),
    "DP2 per-token loss": (2, {"per_token": True}),
    "DP2 ZeRO-1": (2, {"zero1": True}),
    "DP2 ZeRO-1 overlapped, 2 steps": (
        2,
        {"zero1": True, "overlap": True, "gather_late": True, "steps": 2},
    ),
    "recompute full": (1, {"recompute": "full"}),
    "recompute selective": (1, {"recompute": "selective"}),
    "TP2 SP recompute full": (2, {"tp": 2, "sp": True, "recompute": "full"}),
    "PP2": (2, {"pp": 2}),
    "PP2 untied": (2, {"pp": 2, "untied": True}),
    "PP2, outputs freed": (2, {"pp": 2, "deallocate": True}),
    "PP2 DP2 per-token loss": (4, {"pp": 2, "per_token": True}),
    "PP3, 2 + 1 + 1 layers": (3, {"pp": 3, "first_stage": 2}),
    "PP2 VPP2": (2, {"pp": 2, "vpp": 2}),
    "PP3 VPP2": (3, {"pp": 3, "vpp": 2, "layers": 6, "microbatches": 6}),
    "CP2": (2, {"cp": 2}),
    "CP2 DP2": (4, {"cp": 2}),
    "CP2 per-token loss": (2, {"cp": 2, "per_token": True}),
    "TP2 SP PP2": (4, {"tp": 2, "sp": True, "pp": 2}),
    "TP2 SP CP2": (4, {"tp": 2, "sp": True, "cp": 2}),
    "TP2 SP DP2 ZeRO-1": (4, {"tp": 2, "sp": True, "zero1": True}),
    "TP2 SP PP2 DP2": (8, {"tp": 2, "sp": True, "pp": 2}),
    "PP2 VPP2 DP2 ZeRO-1 overlapped, 2 steps": (
        4,
        {"pp": 2, "vpp": 2, "zero1": True, "overlap": True, "gather_late": True, "steps": 2},
    ),
    "EP2 all-to-all": (2, {"ep": 2, "experts": 4}),
    "EP2 all-gather": (2, {"ep": 2, "experts": 4, "dispatcher": "allgather"}),
    "EP2 ZeRO-1": (2, {"ep": 2, "experts": 4, "zero1": True}),
    "MoE PP2": (2, {"pp": 2, "experts": 4}),
    "TP2 SP EP2": (2, {"tp": 2, "sp": True, "ep": 2, "etp": 1, "experts": 4}),
    "TP2 SP EP2 ETP2": (4, {"tp": 2, "sp": True, "ep": 2, "etp": 2, "experts": 4}),
    "TP2 SP, multi-token head": (2, {"tp": 2, "sp": True, "mtp": 1}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A layout in one precision, or a bug (`bug` is its name) in the layout it needs."""

    table: str  # layouts or bugs
    name: str
    reference: Function
    candidate: Function
    steps: int = 1
    bug: str = ""


def all_cases() -> list[Case]:
    layouts = [
        Case(
            table="layouts",
            name=f"{name} {'bf16' if bf16 else 'fp32'}",
            reference=alone(layout | {"bf16": bf16}),
            candidate=on_ranks(ranks, layout | {"bf16": bf16}),
            steps=layout.get("steps", 1),
        )
        for name, (ranks, layout) in LAYOUTS.items()
        for bf16 in (False, True)
    ]
    return layouts + [
        Case(
            table="bugs",
            name=bug.name,
            reference=bug.reference,
            candidate=bug.candidate,
            steps=bug.steps,
            bug=bug.name,
        )
        for bug in bugs(Family.MEGATRON)
    ]


def chosen(cases: Sequence[Case], names: Sequence[str]) -> list[Case]:
    """Those of a table, of a layout in both precisions, or one by its name."""
    known = {c.table for c in cases} | {c.name for c in cases} | set(LAYOUTS)
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"no such case: {', '.join(unknown)}")
    return [
        case
        for case in cases
        if not names or {case.table, case.name, case.name.rpartition(" ")[0]} & set(names)
    ]
