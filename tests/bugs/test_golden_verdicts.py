"""What is said of bugs and of correct programs stays word for word what it was.

UPDATE_GOLDEN=1 writes the files anew; look at their diff. Verdicts, findings, culprits, diagnoses,
notes and exit codes are compared, of the plain comparison, the isolated one and both together;
numbers are not, since they differ between processors.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ttrace.core.results import CheckResult, Verdict
from zoo.bug import Family
from zoo.programs.registry import programs
from zoo.programs.trial import try_program
from zoo.registry import bugs, find
from zoo.trials import Trial, Trials

GOLDEN = Path(__file__).parents[1] / "golden" / "verdicts"
BUGS = {
    Family.DEMO: [bug.name for bug in bugs(Family.DEMO)],
    Family.NATIVE: [
        *("lost-hooks", "stale-weights", "bf16-reduction", "tied-twice", "expert-divisor"),
        *("same-samples", "rate-times-ranks", "detached"),
    ],
    Family.LOW_PRECISION: ["left-out-of-recipe", "same-seed-on-all-ranks", "overflow-unseen"],
    Family.MEGATRON: ["router-sync", "stage-division", "norm-of-one-stage"],
}
CORRECT = ["by-hand", "masked-attention", "microbatch-fsdp2", "rewrite/scores-shifted", "gan"]


def told(result: CheckResult) -> dict[str, Any]:
    """What a result says, without its numbers."""
    return {
        "exit_code": result.exit_code,
        "passing": sum(tensor.verdict is Verdict.PASS for tensor in result.tensors),
        "others": {
            str(tensor.id): " ".join(
                [
                    tensor.verdict.value,
                    tensor.finding.value if tensor.finding else "",
                    *(f"rank {rank}" for rank in tensor.ranks),
                ]
            ).strip()
            for tensor in result.tensors
            if tensor.verdict is not Verdict.PASS
        },
        "culprits": [
            {
                "blame": [*culprit.blame.modules, culprit.blame.stage, culprit.blame.phase],
                "reason": culprit.reason,
                "mistake": culprit.diagnosis and culprit.diagnosis.mistake,
                "evidence": [str(id_) for id_ in culprit.evidence],
                "steps": list(culprit.steps),
            }
            for culprit in result.culprits
        ],
        "notes": [note.topic for note in result.notes],
    }


def tried(family: str, name: str, trials: Trials) -> Trial:
    if family == "correct":
        return try_program(trials, programs()[name])
    return trials.bug(find(name, Family(family)))


CASES = [
    *((family.value, name) for family, names in BUGS.items() for name in names),
    *(("correct", name) for name in CORRECT),
]


@pytest.mark.parametrize(("family", "name"), CASES)
def test_what_is_said_is_what_was_said(family: str, name: str, trials: Trials) -> None:
    trial = tried(family, name, trials)
    found = {"plain": told(trial.plain), "together": told(trial.result)}
    if trial.isolated is not None:
        found["isolated"] = told(trial.isolated)
    file = GOLDEN / f"{family}-{name.replace('/', '-')}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(found, indent=1) + "\n")
    assert json.loads(json.dumps(found)) == json.loads(file.read_text())
