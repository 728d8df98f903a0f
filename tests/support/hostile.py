r"""A result in which every text is a stranger's: what no form of report may obey.

hostile("\n::error::x")     a result of many kinds of findings, with this in each of its texts
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from tests.support.made_results import CODE, made
from ttrace.core.blame import Blame, Culprit, Diagnosis, Mistake, Nearest, Phase, Reason, Stage
from ttrace.core.evidence import RunFacts
from ttrace.core.finding import Finding, Note, Specifics, Topic
from ttrace.core.record import Difference, Owner
from ttrace.core.results import (
    Acceptance,
    AcceptedTensors,
    CheckResult,
    Coverage,
    TensorResult,
    Verdict,
)

PAYLOADS = {
    "markup": "</script><script>alert(1)</script><img src=x onerror=alert(1)><!--",
    "attribute": '" onmouseover="alert(1)" x=\'',
    "links": "](http://e.x) ![i](http://e.x/i.png) [l](javascript:alert(1)) <http://e.x> http://e.x",
    "mentions": "@octocat #12 GH-12 a/b#1 www.e.x **b** _i_ ~~s~~ $x$",
    "blocks": "\n\n# heading\n\n- item\n\n```\n~~~\n> quote\n\n---\n<div>\n",
    "ticks": "`` ` ``` \\` `",
    "table": "|a\\|b\\\\|c|\n|---|\n|",
    "workflow": "\n::error::x\r\n::set-output name=a::b%0A::error::c,d:e",
    "old commands": "::add-mask::a ##[add-mask]b ##vso[task.setvariable]c",
    "terminal": "\x1b]0;owned\x07\x1b[31m\x1b[2J\x1b[H\x9b31m\r\b\t\x7f\x85\x00",
    "unseen": "\u202egpj\u2066\u2069\u200b\u200d\u2028\u2029\ufeff\u3164\xad\xa0",
    "surrogates": "\udc80\udcff\ud83d",
    "xml": "]]>&amp;&#x1b;\x0b\ufffe\uffff\U0010ffff<![CDATA[",
    "console": "[bold red]x[/] [link=http://e.x]y[/link] :smile: [/nothing]",
    "templates": "@DATA@ @SCRIPT@ @TITLE@ {0} {count:a/b} %s %(x)s ${x} $(x) {{x}}",
}
# Words of ours that are no enums: a result in which another stands for one is refused.
_ROLES = ("candidate", "reference", "perturbed", "shard", "replica", "recomputed", "sum")


def hostile(text: str) -> CheckResult:
    """Return the full result with the text before and after every other."""
    # JSON cannot tell two halves of a character from a whole one.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return _everywhere(full(), lambda own: own if own in _ROLES else f"{text}{own}{text}")


def _everywhere(value: Any, change: Any) -> Any:
    if type(value) is str:  # enums are our own words
        return change(value) if value else value
    if isinstance(value, tuple):
        return tuple(_everywhere(each, change) for each in value)
    if isinstance(value, dict):
        return {_everywhere(k, change): _everywhere(v, change) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        own = {f.name: _everywhere(getattr(value, f.name), change) for f in fields(value)}
        return replace(value, **own)
    return value


def _difference() -> Difference:
    return Difference(
        owner=Owner.MODULE,
        name="lr",
        reference=(1.0,),
        candidate=(2.0,),
        owned=("norm",),
        ranks=(1,),
    )


def _culprits(failed: tuple[TensorResult, ...]) -> tuple[Culprit, ...]:
    """One of every kind that has words of its own."""
    outside = Diagnosis(mistake="their_mistake", sentence="a sentence from outside")
    blames: tuple[dict[str, Any], ...] = (
        {"reason": Reason.LOSS_ALONE, "code": CODE},
        {"reason": Reason.OTHER_PARAMETERS, "count": 1},
        {"reason": Reason.FIRST_WRONG_OUTPUT, "differences": (_difference(),)},
        {"reason": Reason.FIRST_WRONG_OUTPUT, "diagnosis": outside},
        {
            "reason": Reason.FIRST_WRONG_OUTPUT,
            "nearest": Nearest(
                diagnosis=Diagnosis(mistake=Mistake.SUM_FOR_MEAN, sizes=("tp",), size=2),
                explained=0.7,
            ),
        },
    )
    culprits = tuple(
        Culprit(blame=Blame.of(tensor.id.module, phase=Phase.FORWARD), evidence=(tensor.id,), **how)
        for tensor, how in zip(failed, blames, strict=False)
    )
    staged = Culprit(
        blame=Blame.at(Stage.LOSS, Phase.FORWARD), reason=Reason.LOSS_ALONE, evidence=()
    )
    return (*culprits, staged)


def full() -> CheckResult:
    """Friendly, with a text wherever a result can hold one."""
    plain = made(1, wrong_layer=0)
    failed = plain.failures[:30]
    lr = _difference()
    told = Specifics(problem="a problem", fault="a fault", gaps=("rows 0 to 3",), ranks=(1, 3))
    tensors = {tensor.id: tensor for tensor in (*plain.tensors[:5], *failed)}
    for tensor, finding in zip(failed[1:], reversed(Finding), strict=False):
        is_whole = finding is Finding.CELLS_DO_NOT_FIT
        verdict = Verdict.MISMATCH if is_whole else Verdict.SHAPE
        tensors[tensor.id] = replace(
            tensor, finding=finding, specifics=told, verdict=verdict, ranks=(1, 3)
        )
    notes = [Note(topic=topic, text="said", modules=("norm", None)) for topic in Topic]
    notes = [n if n.topic is not Topic.OTHER_NUMBER else replace(n, difference=lr) for n in notes]
    used = AcceptedTensors(
        entry=Acceptance(id="step*", reason="known", bound=9.0), count=1, beyond=1
    )
    idle = AcceptedTensors(entry=Acceptance(id="none*", reason="was once"))
    names = ("layers.0.norm", "norm")
    whole = replace(
        plain,
        tensors=tuple(tensors.values()),
        culprits=_culprits(failed),
        coverage=Coverage(
            modules=9,
            hooks_expected=3,
            hooks_fired=2,
            unfired=names,
            never_called=names,
            faults=names,
            reference_faults=names,
            candidate_only=names,
        ),
        notes=tuple(n for n in notes if n.topic is not Topic.FEWER_STEPS),
        accepted=(used, idle),
        runs=tuple(map(_told, plain.runs)),
        details=tuple(replace(detail, tiles=((1.0,),)) for detail in plain.details[:2]),
        command="ttrace diff --reference a --candidate b",
    )
    return replace(whole, isolation=replace(whole, accepted=(used,)))


def _told(run: RunFacts) -> RunFacts:
    return replace(run, facts={**run.facts, f"only {run.role}": "yes"})
