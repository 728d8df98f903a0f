"""Losses and operators, and the placements in which each is tried on a DTensor.

A case is a function of a tensor of 8 rows and 6 columns and of `k`, which makes the constants of
the case what the tensor is: plain on one process, else on the mesh. Rows are positive numbers below
one, so that logarithms and probabilities are in their range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Constant = Callable[[Tensor], Any]
Case = Callable[[Any, Constant], Any]

ROWS, COLUMNS = 8, 6


def _draw(*shape: int, seed: int = 5) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 0.8 + 0.1


def _ids(*shape: int, among: int = COLUMNS) -> Tensor:
    return torch.randint(0, among, shape, generator=torch.Generator().manual_seed(6))


def _labels(rows: int) -> Tensor:
    labels = _ids(rows)
    labels[-rows // 4 :] = -100
    return labels


def _like(x: Any) -> Tensor:
    return _draw(*x.shape)


_PAIRED: dict[str, Callable[..., Any]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "bce": F.binary_cross_entropy,
    "bce_logits": F.binary_cross_entropy_with_logits,
    "soft_margin": F.soft_margin_loss,
    "kl_div": F.kl_div,
    "poisson": F.poisson_nll_loss,
    "hinge_embedding": F.hinge_embedding_loss,
    "multilabel_soft_margin": F.multilabel_soft_margin_loss,
}


def _paired(loss: Callable[..., Any], reduction: str) -> Case:
    return lambda x, k: loss(x, k(_like(x)), reduction=reduction)


def _weighted_bce(x: Any, k: Constant) -> Any:
    return F.binary_cross_entropy_with_logits(x, k(_like(x)), pos_weight=k(_draw(COLUMNS)))


def _cross_entropy(reduction: str, **options: Any) -> Case:
    return lambda x, k: F.cross_entropy(x, k(_ids(x.shape[0])), reduction=reduction, **options)


def _ignoring(x: Any, k: Constant) -> Any:
    return F.cross_entropy(x, k(_labels(x.shape[0])))


def _class_weights(x: Any, k: Constant) -> Any:
    return F.cross_entropy(x, k(_ids(x.shape[0])), weight=k(_draw(COLUMNS)))


def _gaussian(x: Any, k: Constant) -> Any:
    return F.gaussian_nll_loss(x, k(_like(x)), k(_draw(*x.shape, seed=7)))


def _three(loss: Callable[..., Any]) -> Case:
    return lambda x, k: loss(x, k(_like(x)), k(_draw(*x.shape, seed=7)))


def _signs(rows: int) -> Tensor:
    return _ids(rows, among=2) * 2.0 - 1.0


LOSSES: dict[str, Case] = {
    **{
        f"{name}-{reduction}": _paired(loss, reduction)
        for name, loss in _PAIRED.items()
        for reduction in ("mean", "sum")
    },
    "mse-none": _paired(F.mse_loss, "none"),
    "kl_div-batchmean": _paired(F.kl_div, "batchmean"),
    "bce_logits-pos_weight": _weighted_bce,
    "cross_entropy-mean": _cross_entropy("mean"),
    "cross_entropy-sum": _cross_entropy("sum"),
    "cross_entropy-none": _cross_entropy("none"),
    "cross_entropy-smoothing": _cross_entropy("mean", label_smoothing=0.1),
    "cross_entropy-ignore": _ignoring,
    "cross_entropy-weight": _class_weights,
    "cross_entropy-probabilities": lambda x, k: F.cross_entropy(x, k(_like(x).softmax(-1))),
    "gaussian_nll": _gaussian,
    "cosine_embedding": lambda x, k: F.cosine_embedding_loss(x, k(_like(x)), k(_signs(len(x)))),
    "margin_ranking": lambda x, k: F.margin_ranking_loss(
        x[:, 0], k(_like(x[:, 0])), k(_signs(len(x)))
    ),
    "multi_margin": lambda x, k: F.multi_margin_loss(x, k(_ids(x.shape[0]))),
    "triplet_margin": _three(F.triplet_margin_loss),
}


def _index_add(x: Any, k: Constant) -> Any:
    return x.index_add(0, k(_ids(5, among=x.shape[0])), k(_draw(5, COLUMNS)))


def _masked(x: Any, k: Constant) -> Any:
    return x.masked_fill(k(_like(x) > 0.5), -1.0).softmax(-1)


def _embedded(**options: Any) -> Case:
    return lambda x, k: F.embedding(k(_ids(4, 3, among=ROWS - 1)), x, **options)


def _convolved(x: Any, k: Constant) -> Any:
    return F.conv1d(x.unsqueeze(1), k(_draw(4, 1, 3)), k(_draw(4)), padding=1)


def _attention(x: Any, k: Constant) -> Any:
    return (x @ k(_draw(COLUMNS, COLUMNS)) @ x.T).softmax(-1) @ x


OPERATORS: dict[str, Case] = {
    "add-bias": lambda x, k: x + k(_draw(COLUMNS)),
    "amax": lambda x, k: x.amax(0),
    "argmax": lambda x, k: x * x.argmax(1, keepdim=True),
    "attention": _attention,
    "bucketed-where": lambda x, k: torch.where(x > 0.5, x, x * x),
    "cat": lambda x, k: torch.cat([x, k(_like(x))], dim=0),
    "clamp": lambda x, k: x.clamp(0.3, 0.6),
    "conv1d": _convolved,
    "cummax": lambda x, k: x.cummax(0).values,
    "cumprod": lambda x, k: x.cumprod(0),
    "cumsum-0": lambda x, k: x.cumsum(0),
    "cumsum-1": lambda x, k: x.cumsum(1),
    "diagonal": lambda x, k: x.diagonal(),
    "einsum": lambda x, k: torch.einsum("bi,bj->ij", x, x),
    "embedding": _embedded(),
    "embedding-padding": _embedded(padding_idx=2),
    "flip": lambda x, k: x.flip(0),
    "gather-0": lambda x, k: x.gather(0, k(_ids(3, COLUMNS, among=x.shape[0]))),
    "gather-1": lambda x, k: x.gather(1, k(_ids(x.shape[0], 3))),
    "group_norm": lambda x, k: F.group_norm(x, 2, k(_draw(COLUMNS)), k(_draw(COLUMNS, seed=8))),
    "index_add": _index_add,
    "index_select": lambda x, k: x.index_select(0, k(_ids(5, among=x.shape[0]))),
    "layer_norm": lambda x, k: F.layer_norm(x, (COLUMNS,), k(_draw(COLUMNS)), k(_draw(COLUMNS))),
    "log_softmax": lambda x, k: x.log_softmax(1),
    "logsumexp-0": lambda x, k: x.logsumexp(0),
    "logsumexp-1": lambda x, k: x.logsumexp(1),
    "masked-softmax": _masked,
    "matmul": lambda x, k: x @ k(_draw(COLUMNS, 4)),
    "max-all": lambda x, k: x.max(),
    "mean-0": lambda x, k: x.mean(0),
    "mean-all": lambda x, k: x.mean(),
    "median": lambda x, k: x.median(0).values,
    "norm-1": lambda x, k: x.norm(1),
    "norm-2": lambda x, k: x.norm(),
    "norm-3": lambda x, k: x.norm(3),
    "norm-inf": lambda x, k: x.norm(float("inf")),
    "norm-rows": lambda x, k: torch.linalg.vector_norm(x, dim=1),
    "normalize": lambda x, k: F.normalize(x, dim=0),
    "outer": lambda x, k: torch.outer(x[:, 0], x[:, 1]),
    "pad": lambda x, k: F.pad(x, (1, 1)),
    "prod": lambda x, k: x.prod(0),
    "prod-all": lambda x, k: x.prod(),
    "repeat": lambda x, k: x.repeat(2, 1),
    "rms_norm": lambda x, k: F.rms_norm(x, (COLUMNS,), k(_draw(COLUMNS))),
    "roll": lambda x, k: x.roll(1, 0),
    "scatter": lambda x, k: x.scatter(1, k(_ids(x.shape[0], 2)), 0.5),
    "scatter_add": lambda x, k: x.scatter_add(1, k(_ids(x.shape[0], 2)), k(_draw(x.shape[0], 2))),
    "slice": lambda x, k: x[1:4],
    "softmax-0": lambda x, k: x.softmax(0),
    "softmax-1": lambda x, k: x.softmax(1),
    "sort": lambda x, k: x.sort(0).values,
    "split": lambda x, k: x.split(3, 0)[1],
    "std-0": lambda x, k: x.std(0),
    "std-all": lambda x, k: x.std(),
    "std-biased": lambda x, k: x.std(0, correction=0),
    "sum-squares": lambda x, k: x.square().sum(1),
    "topk": lambda x, k: x.topk(2, 0).values,
    "transpose": lambda x, k: x.T.contiguous(),
    "tril": lambda x, k: x.tril(),
    "unbind": lambda x, k: x.unbind(0)[2],
    "unfold": lambda x, k: x.unfold(0, 2, 2),
    "var-0": lambda x, k: x.var(0),
    "var-1": lambda x, k: x.var(1),
    "var-all": lambda x, k: x.var(),
    "view": lambda x, k: x.reshape(-1, 3),
}

# What loss_parallel takes over, on a tensor whose columns are sharded.
TAKEN_OVER = ("log_softmax", *(f"loss {name}" for name in LOSSES if name.startswith("cross_")))
CASES = {**{f"loss {name}": case for name, case in LOSSES.items()}, **OPERATORS}
