"""Small models of several sizes, their gradients, and those of a correct layout in parts.

Enters: a family, a size, a dtype and a seed. Leaves: a model with a batch, whose gradients can be
made at once, or in parts as data-parallel ranks make them. It must not know any yardstick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Gradients = Mapping[str, Tensor]
Batch = tuple[Tensor, Tensor]  # inputs and targets, samples first

SAMPLES = 8
_WORDS, _CLASSES, _COLOURS = 64, 10, 3


class Normed(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, width)
        self.inner = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _WORDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.inner(self.embedding(x))))


class Recurrent(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, _WORDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(x))[0])


Normalise = Callable[[nn.BatchNorm2d, Sequence[Tensor]], list[Tensor]]


class FrozenNorm(nn.BatchNorm2d):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.eval()


class WrittenNorm(nn.BatchNorm2d):
    """By the operators that parts of a batch need, instead of one for the whole."""

    def forward(self, x: Tensor) -> Tensor:
        return together(self, [x])[0]


class Convolutions(nn.Module):
    def __init__(self, norm: Callable[[int], nn.BatchNorm2d], width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(_COLOURS, width, 3, padding=1, bias=False)
        self.norm1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = norm(width)
        self.head = nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self._in_parts([x], lambda norm, parts: [norm(part) for part in parts])[0]

    def synchronised(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Outputs of parts of a batch, with the statistics of the whole."""
        return self._in_parts(parts, together)

    def _in_parts(self, parts: Sequence[Tensor], normalise: Normalise) -> list[Tensor]:
        first = [F.relu(h) for h in normalise(self.norm1, [self.conv1(x) for x in parts])]
        second = normalise(self.norm2, [self.conv2(h) for h in first])
        pairs = zip(first, second, strict=True)
        return [self.head(F.relu(h + more).mean((2, 3))) for h, more in pairs]


def together(norm: nn.BatchNorm2d, parts: Sequence[Tensor]) -> list[Tensor]:
    """Batch norm over parts of a batch, whose sums are added; inside at least in float32."""
    wide = [part.to(torch.promote_types(part.dtype, torch.float32)) for part in parts]
    count = sum(part.numel() // part.shape[1] for part in wide)

    def average(values: Sequence[Tensor]) -> Tensor:
        sums = (value.sum((0, 2, 3), keepdim=True) for value in values)
        return reduce(torch.add, sums) / count

    mean = average(wide)
    scale = (average([(part - mean) ** 2 for part in wide]) + norm.eps).rsqrt()
    weight, bias = norm.weight.view(1, -1, 1, 1), norm.bias.view(1, -1, 1, 1)
    return [((part - mean) * scale * weight + bias).to(parts[0].dtype) for part in wide]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model and its batch.

    `rows`: how many terms a weight gradient has. `independent`: whether a sample's output depends
    on no other sample.
    """

    model: nn.Module
    batch: Batch
    rows: int
    independent: bool

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line of the tables."""

    family: str
    size: int
    unit: str

    @property
    def name(self) -> str:
        return f"{self.family}, {self.size:,} {self.unit}"

    @property
    def independent(self) -> bool:
        return self.family not in _SYNCHRONISED

    @property
    def rows(self) -> int:
        return SAMPLES * self.size**2 if self.unit == "px" else self.size

    def subject(self, dtype: torch.dtype, seed: int) -> Subject:
        torch.manual_seed(seed)
        model = _FAMILIES[self.family]().to(dtype)
        batch = _images(self.size, dtype) if self.unit == "px" else _words(self.size)
        return Subject(model=model, batch=batch, rows=self.rows, independent=self.independent)


def _words(rows: int) -> Batch:
    shape = (SAMPLES, rows // SAMPLES)
    return torch.randint(_WORDS, shape), torch.randint(_WORDS, shape)


def _images(pixels: int, dtype: torch.dtype) -> Batch:
    images = torch.randn(SAMPLES, _COLOURS, pixels, pixels).to(dtype)
    return images, torch.randint(_CLASSES, (SAMPLES,))


FROZEN, WRITTEN, FUSED = (f"conv, {kind} BatchNorm" for kind in ("frozen", "written-out", "fused"))
_SYNCHRONISED = (WRITTEN, FUSED)
_FAMILIES: Mapping[str, Callable[[], nn.Module]] = {
    "LayerNorm": Normed,
    FROZEN: partial(Convolutions, FrozenNorm),
    WRITTEN: partial(Convolutions, WrittenNorm),
    FUSED: partial(Convolutions, nn.BatchNorm2d),
    "LSTM": Recurrent,
}
CASES = (
    *(Case(family="LayerNorm", size=rows, unit="rows") for rows in (256, 4096, 16384, 65536)),
    *(
        Case(family=family, size=pixels, unit="px")
        for family in (FROZEN, WRITTEN, FUSED)
        for pixels in (8, 16, 32, 64)
    ),
    *(Case(family="LSTM", size=SAMPLES * positions, unit="rows") for positions in (16, 128)),
)


def gradients(model: nn.Module, batch: Batch) -> Gradients:
    """Of the mean over all rows."""
    x, y = batch
    return _backward(model, _loss(model(x), y))


def in_parts(subject: Subject, parts: int) -> Gradients:
    """As so many data-parallel ranks make them; where samples depend on each other, in step."""
    xs, ys = (values.chunk(parts) for values in subject.batch)
    if subject.independent:
        found = [gradients(subject.model, part) for part in zip(xs, ys, strict=True)]
        return weighted(found, [1 / parts] * parts)
    assert isinstance(subject.model, Convolutions), "only batch norm makes samples depend"
    outputs = subject.model.synchronised(xs)
    losses = [_loss(out, y) / parts for out, y in zip(outputs, ys, strict=True)]
    return _backward(subject.model, reduce(torch.add, losses))


def weighted(found: Sequence[Gradients], shares: Sequence[float]) -> Gradients:
    """Added in their own dtype, as a reduction does."""
    return {
        name: reduce(
            torch.add, (each[name] * share for each, share in zip(found, shares, strict=True))
        )
        for name in found[0]
    }


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.reshape(-1, output.shape[-1]), target.flatten())


def _backward(model: nn.Module, loss: Tensor) -> Gradients:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
