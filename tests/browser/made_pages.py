"""Pages of made results, with every part that a page can draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.support.made_results import made
from ttrace.core.ids import Kind
from ttrace.core.results import CheckResult, Verdict
from ttrace.report import html
from ttrace.report.html import payload

Payload = dict[str, Any]

LINES = (
    "    def forward(self, x: torch.Tensor) -> torch.Tensor:",
    "        if self.tp is not None:",
    "            x = copy_to(x, self.tp)",
    "        hidden = F.silu(self.w1(x)) * self.w3(x)",
    "        out = self.w2(hidden)",
    "        return out if self.tp is None else reduce_from(out, self.tp)",
)
COMMANDS = (
    ("confirm it", "ttrace check out/reference out/candidate --isolate"),
    (
        "export the tensor",
        "ttrace show out/result.json step0/layers.2.feed_forward.w2:grad_input.0",
    ),
)


def mesh(sizes: dict[str, int]) -> Payload:
    """Ranks in order, the last axis fastest."""
    places: list[list[int]] = [[]]
    for size in sizes.values():
        places = [[*place, n] for place in places for n in range(size)]
    names = [" ".join(f"{a}{n}" for a, n in zip(sizes, place, strict=True)) for place in places]
    return {
        "axes": list(sizes),
        "sizes": list(sizes.values()),
        "coordinates": places,
        "names": names,
    }


def code(line: int, *, own: bool) -> Payload:
    file = "model.py" if own else "torch/nn/modules/linear.py"
    lines = list(LINES if own else LINES[:3])
    function = "FeedForward.forward" if own else "Linear.forward"
    where = {"file": file, "line": line, "function": function, "first": line - 2}
    return where | {"lines": lines, "own": own}


def complete(result: CheckResult) -> Payload:
    """The payload of a result, with two ranks to blame, commands and more code."""
    data = payload(result)
    for card in data["cards"]:
        card |= {
            "sure": "certain: 193,000x its tolerance",
            "bar": {"noise": 1e-7, "allowed": 6e-7, "error": 0.7},
            "ranks": {"words": "tp1 (ranks 1, 3)", "wrong": [1, 3]},
            "commands": [list(command) for command in COMMANDS],
            "code": [code(121, own=True), code(130, own=False)],
        }
    return data


def write(file: Path, result: CheckResult, data: Payload) -> Path:
    with patch.object(html, "payload", lambda _: data):
        file.write_text(html.render(result), encoding="utf-8")
    return file


def changed(
    folder: Path, change: Callable[[Payload], None], result: CheckResult | None = None
) -> Path:
    """The page of a result whose payload was changed."""
    result = made(4, wrong_layer=2) if result is None else result
    data = complete(result)
    change(data)
    return write(folder / "changed.html", result, data)


def isolated() -> CheckResult:
    """With an isolated run, in which the culprit alone is wrong."""
    whole = made(4, wrong_layer=2)
    (culprit,) = whole.culprits
    alone = replace(culprit, evidence=culprit.evidence[:1])
    tensors = (
        replace(t, ratio=4.3e5)
        if t.id in alone.evidence
        else replace(t, verdict=Verdict.PASS, ratio=0.1)
        for t in whole.tensors
    )
    run = replace(whole, tensors=tuple(tensors), culprits=(alone,))
    return replace(whole, culprits=(alone,), isolation=run)


def of_two_steps() -> CheckResult:
    """The first step is right; its second has the culprit."""
    right, wrong = made(3), made(3, wrong_layer=1)

    def later(id_: Any) -> Any:
        return replace(id_, step=1)

    count = len(right.tensors)
    second = (replace(t, id=later(t.id), order=t.order + count) for t in wrong.tensors)
    culprits = (replace(c, evidence=tuple(map(later, c.evidence))) for c in wrong.culprits)
    details = (replace(detail, id=later(detail.id)) for detail in wrong.details)
    return replace(
        wrong,
        tensors=(*right.tensors, *second),
        culprits=tuple(culprits),
        details=tuple(details),
    )


def place_of(data: Payload, kind: Kind, module: str = "") -> int:
    """The number of the first tensor of a kind in a module."""
    comparison = data["comparisons"][0]
    kinds = [entry["name"] for entry in data["kinds"]]
    pairs = zip(comparison["kind"], comparison["module"], strict=True)
    named = [(kinds[k], comparison["tables"]["module"][m]) for k, m in pairs]
    return named.index((kind.value, module))
