"""Results made by hand, of any size: what reports are tested with, without training anything."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

from ttrace.core.blame import Blame, Culprit, Diagnosis, Mistake, Phase, Reason
from ttrace.core.evidence import Detail, ElementError, RowError, RunFacts, Shard
from ttrace.core.finding import Finding, Note, Topic
from ttrace.core.ids import Kind, TensorId
from ttrace.core.record import Excerpt, ModuleInfo
from ttrace.core.results import CheckResult, Coverage, TensorResult, Verdict
from ttrace.core.statistics import Judgement, Reading, Statistic, Statistics, Tolerance

FORWARD = ("attention_norm", "attention.wq", "attention.wk", "attention.wv", "attention.wo")
CHILDREN = (*FORWARD, "ffn_norm", "feed_forward.w1", "feed_forward.w3", "feed_forward.w2")
CLASSES = {"norm": "RMSNorm", "attention": "Attention", "feed_forward": "FeedForward"}
SHAPE = (8, 32, 64)
CODE = (
    Excerpt(
        file="model.py",
        line=42,
        function="FeedForward.forward",
        first=40,
        lines=(
            "def forward(self, x):",
            "    gate = torch.nn.functional.silu(self.w1(x))",
            "    return self.w2(gate * self.w3(x))",
        ),
    ),
    Excerpt(
        file="site-packages/torch/nn/modules/linear.py",
        line=130,
        function="Linear.forward",
        first=130,
        lines=("def forward(self, input):", "    return F.linear(input, self.weight, self.bias)"),
        is_own=False,
    ),
)


def tensor(id_: TensorId, order: int, ratio: float, verdict: Verdict | None = None) -> TensorResult:
    allowed = 3e-6
    place = Reading(statistic=Statistic.ROW, value=ratio * 1e-6, dims=(0, 1), index=(3, 17))
    judged = (
        Judgement(
            reading=Reading(statistic=Statistic.NORM, value=ratio * allowed),
            allowed=allowed,
            ratio=ratio,
        ),
        Judgement(reading=place, allowed=1.1e-6, ratio=ratio / 1.1),
    )
    if verdict is None:
        verdict = Verdict.MISMATCH if ratio > 1 else Verdict.PASS
    return TensorResult(
        id=id_,
        verdict=verdict,
        order=order,
        shape=SHAPE,
        dtype="float32",
        statistics=Statistics(
            count=math.prod(SHAPE),
            error_norm=ratio * allowed,
            reference_norm=10.0,
            candidate_norm=10.0,
            dot=100.0,
            max_error=ratio * 1e-7,
            error_sum=0.0,
            nonfinite_reference=0,
            nonfinite_candidate=0,
            unequal=0 if ratio == 0 else 12,
            max_ulp=3,
            worst_element=(3, 17, 5),
        ),
        tolerance=Tolerance(
            error_norm=allowed, source="3 x noise of perturbed reference", noise=allowed / 3
        ),
        judgements=judged,
        ratio=ratio,
        error_eps=ratio * 2.5,
        finding=_finding(verdict, ratio),
    )


def _finding(verdict: Verdict, ratio: float) -> Finding | None:
    if verdict is Verdict.MISMATCH:
        return Finding.NORM
    return None if ratio else Finding.EQUAL


def detail(id_: TensorId, ranks: int = 4, wrong: int = 2) -> Detail:
    """Column shards over the last dim; one of them is wrong."""
    width = SHAPE[-1] // ranks
    dice = random.Random(str(id_))
    shards = tuple(
        Shard(
            ranks=(rank,),
            microbatches=(0,),
            role="shard",
            runs=(((0, 8),), ((0, 32),), ((rank * width, width),)),
            relative_error=0.4 if rank == wrong else 1e-7,
            ratio=2e5 if rank == wrong else 0.3,
        )
        for rank in range(ranks)
    )
    tiles = tuple(
        tuple(
            float(f"{(1e-3 if column // width == wrong else 5e-9) * dice.uniform(0.3, 1.7):.3g}")
            for column in range(64)
        )
        for _ in range(64)
    )
    return Detail(
        id=id_,
        shape=SHAPE,
        shards=shards,
        tiles=tiles,
        reference_rms=0.08,
        allowed_rms=2.3e-8,
        ulp=(9000, 2100, 900, 160, 30, 4, 0, 0, 0, 0, 0, 40, 300, 900, 1500, 900, 200, 30),
        worst_rows=tuple(
            RowError(index=(row, 17), error_norm=0.2 / (row + 1), reference_norm=0.6, ranks=(2,))
            for row in range(8)
        ),
        wrong_ranks=(wrong,),
        elements=tuple(
            ElementError(
                index=(row, 17, 2 * width + row), reference=0.3, candidate=0.1 * row, ranks=(2,)
            )
            for row in range(8)
        ),
    )


def paths(layers: int) -> list[str]:
    names = ["tok_embeddings"]
    names += [f"layers.{layer}.{child}" for layer in range(layers) for child in CHILDREN]
    return [*names, "norm", "output"]


def runs(candidate_ranks: int = 4) -> tuple[RunFacts, ...]:
    versions = {"ttrace": "0.1.0", "torch": "2.13.0", "python": "3.11.2"}
    facts = {"torch seed": "0", "git commit": "1f2e3d4c"}

    def run(role: str, ranks: int, mesh: dict[str, int], seed: int | None = None) -> RunFacts:
        places = itertools.product(*(range(size) for size in mesh.values())) if mesh else ()
        return RunFacts(
            role=role,
            path=f"out/{role}",
            world_size=ranks,
            mesh=mesh,
            dtypes=("float32",),
            adapter="native",
            device="cpu",
            steps=1,
            noise_seed=seed,
            versions=versions,
            facts=facts,
            coordinates=tuple(places),
        )

    return (
        run("reference", 1, {}),
        run("candidate", candidate_ranks, {"dp": candidate_ranks // 2, "tp": 2}),
        run("perturbed", 1, {}, 1),
    )


def made(layers: int = 4, *, wrong_layer: int | None = None, ranks: int = 4) -> CheckResult:
    """A step of a Llama; its `wrong_layer` passes back a wrong gradient through feed_forward.w2."""
    dice = random.Random(layers)
    names = paths(layers)
    ids = [TensorId(step=0, module=name, kind=Kind.PARAM, slot="weight") for name in names]
    for name in names:
        ids += [
            TensorId(step=0, module=name, kind=kind, slot="0") for kind in (Kind.INPUT, Kind.OUTPUT)
        ]
    ids.append(TensorId(step=0, module="", kind=Kind.LOSS))
    for name in reversed(names):
        ids += [
            TensorId(step=0, module=name, kind=Kind.GRAD_OUTPUT, slot="0"),
            TensorId(step=0, module=name, kind=Kind.GRAD_INPUT, slot="0"),
            TensorId(step=0, module=name, kind=Kind.GRAD, slot="weight"),
        ]
    for kind in (Kind.MAIN_GRAD, Kind.PARAM_AFTER):
        ids += [TensorId(step=0, module=name, kind=kind, slot="weight") for name in names]
    culprit = None if wrong_layer is None else f"layers.{wrong_layer}.feed_forward.w2"
    reached = False
    results = []
    for order, id_ in enumerate(ids):
        ratio = 0.0 if id_.kind is Kind.PARAM else 10 ** dice.uniform(-2.2, -0.2)
        reached = reached or (id_.module == culprit and id_.kind is Kind.GRAD_INPUT)
        after = names.index(id_.module) < names.index(culprit) if culprit and id_.module else False
        if reached and (after or (id_.module == culprit and id_.kind is Kind.GRAD_INPUT)):
            size = {Kind.PARAM_AFTER: 2.0, Kind.MAIN_GRAD: 4.0}.get(id_.kind, 5.3)
            ratio = 10 ** (size + dice.uniform(-0.4, 0.4))
        results.append(tensor(id_, order, ratio))
    failed = [result.id for result in results if result.verdict.is_failure]
    return CheckResult(
        reference="out/reference",
        candidate="out/candidate",
        perturbed=("out/perturbed-1",),
        tensors=tuple(replace(r, ranks=(2,)) if r.id in failed[:2] else r for r in results),
        culprits=() if culprit is None else (_culprit(culprit, failed),),
        coverage=Coverage(
            modules=len(names), hooks_expected=3 * len(names), hooks_fired=3 * len(names)
        ),
        notes=(Note(topic=Topic.LOSS_SCALE, factor=2.0),),
        details=tuple(detail(id_, ranks) for id_ in failed[:24]),
        runs=runs(ranks),
        modules=tuple(
            ModuleInfo(
                path=name,
                class_name=CLASSES.get(name.split(".")[-1].split("_")[-1], "Linear"),
                source="model.py:42",
            )
            for name in names
        ),
    )


def _culprit(module: str, failed: list[TensorId]) -> Culprit:
    return Culprit(
        blame=Blame.of(module, phase=Phase.BACKWARD),
        reason=Reason.GRADIENT_OF_INPUT,
        evidence=tuple(failed[:2]),
        diagnosis=Diagnosis(mistake=Mistake.MISSING_ALL_REDUCE, axes=("tp",)),
        code=CODE,
    )
