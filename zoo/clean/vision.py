"""Models of images: ViT, MLP-Mixer, ResNets, U-Net, diffusion transformer, autoencoder."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.clean.architecture import (
    CLASSES,
    WHOLE_BATCH,
    Architecture,
    Batch,
    at_least_fp32,
    cross_entropy,
    images,
    side,
    squared_error,
)
from zoo.clean.case import Case
from zoo.clean.parts import Attention, Block, Mlp
from zoo.native.collectives import CopyToRanks, SumOverRanks

_PATCH = 2  # pixels along a patch: small, so that small images have many
_EPS = 1e-5  # of torch's batch norm


class Vit(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        patches = (side(case) // _PATCH) ** 2
        self.patches = nn.Conv2d(3, case.width, _PATCH, stride=_PATCH)
        self.first = nn.Parameter(torch.randn(1, 1, case.width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, patches + 1, case.width) * 0.02)
        self.blocks = nn.ModuleList(
            Block(Attention(case.width, causal=False), Mlp(case.width), nn.LayerNorm)
            for _ in range(case.depth)
        )
        self.norm = nn.LayerNorm(case.width)
        self.head = nn.Linear(case.width, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), 1) + self.places
        places = torch.arange(x.shape[1], device=x.device)[None]
        for block in self.blocks:
            x = block(x, places)
        return cast(Tensor, self.head(self.norm(x[:, 0])))


class FrozenBatchNorm(nn.Module):
    """Statistics of another training, as detection models keep them."""

    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(channels))
        self.bias = nn.Parameter(0.1 * torch.randn(channels))
        self.register_buffer("mean", 0.1 * torch.randn(channels))
        self.register_buffer("variance", 0.5 + torch.rand(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.variance, self.weight, self.bias, eps=_EPS)


class SyncBatchNorm(nn.Module):
    """Statistics of the whole batch, with their gradient; torch's own is for GPUs."""

    running: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running", torch.stack((torch.zeros(channels), torch.ones(channels))))

    def forward(self, x: Tensor) -> Tensor:
        wide = at_least_fp32(x)
        count = wide.new_full((1,), x.numel() / x.shape[1])
        sums = _over_all(torch.cat((wide.sum((0, 2, 3)), count)))
        count, mean = sums[-1], sums[:-1] / sums[-1]
        centred = wide - mean[:, None, None]
        variance = _over_all(centred.square().sum((0, 2, 3))) / count
        with torch.no_grad():
            unbiased = variance * count / (count - 1)
            self.running.lerp_(torch.stack((mean, unbiased)).to(self.running.dtype), 0.1)
        scaled = centred * (variance + _EPS).rsqrt()[:, None, None]
        return scaled.to(x.dtype) * self.weight[:, None, None] + self.bias[:, None, None]


def _over_all(terms: Tensor) -> Tensor:
    """A sum over ranks, each of which uses it for a loss of its own: gradients are summed too."""
    return cast(Tensor, CopyToRanks.apply(SumOverRanks.apply(terms)))


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, norm: type[nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1, self.bn2 = norm(channels), norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        inside = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(inside)))


class ResNet(nn.Module):
    def __init__(self, case: Case, *, norm: type[nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, case.width, 3, padding=1, bias=False)
        self.bn = norm(case.width)
        self.blocks = nn.ModuleList(ResidualBlock(case.width, norm) for _ in range(case.depth))
        self.head = nn.Linear(case.width, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.bn(self.stem(image)))
        for number, block in enumerate(self.blocks):
            x = F.max_pool2d(x, 2) if number == 1 else x
            x = block(x)
        return cast(Tensor, self.head(x.mean((2, 3))))


class NoisedBlock(nn.Module):
    """Convolutions with group norm, told how much noise there is."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(1, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        inside = self.conv1(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return cast(Tensor, self.skip(x) + self.conv2(F.silu(self.norm2(inside))))


class UNet(nn.Module):
    """One way down, `depth` blocks at half the size, and up again beside what was there."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, case.width, 3, padding=1)
        self.down = NoisedBlock(case.width, case.width)
        self.blocks = nn.ModuleList(NoisedBlock(case.width, case.width) for _ in range(case.depth))
        self.up = NoisedBlock(2 * case.width, case.width)
        self.norm = nn.GroupNorm(4, case.width)
        self.head = nn.Conv2d(case.width, 3, 3, padding=1)

    def forward(self, image: Tensor, time: Tensor) -> Tensor:
        wide = self.down(self.stem(image), time)
        x = F.avg_pool2d(wide, 2)
        for block in self.blocks:
            x = block(x, time)
        x = torch.cat((F.interpolate(x, scale_factor=2), wide), 1)
        return cast(Tensor, self.head(F.silu(self.norm(self.up(x, time)))))


class Mixer(nn.Module):
    """MLPs over patches and over channels in turn."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        patches = (side(case) // _PATCH) ** 2
        self.patches = nn.Conv2d(3, case.width, _PATCH, stride=_PATCH)
        self.blocks = nn.ModuleList(MixerBlock(patches, case.width) for _ in range(case.depth))
        self.norm = nn.LayerNorm(case.width)
        self.head = nn.Linear(case.width, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return cast(Tensor, self.head(self.norm(x).mean(1)))


class MixerBlock(nn.Module):
    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over_patches, self.over_channels = Mlp(patches, hidden=2 * width), Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over_patches(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + cast(Tensor, self.over_channels(self.norm2(x)))


class DiffusionBlock(nn.Module):
    """Adaptive layer norm: scale, shift and gate come from the amount of noise."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(width, causal=False), Mlp(width)
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.adapt = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, condition: Tensor, places: Tensor) -> Tensor:
        parts = self.adapt(F.silu(condition))[:, None].chunk(6, -1)
        inside = self.norm1(x) * (1 + parts[0]) + parts[1]
        x = x + parts[2] * self.attention(inside, places)
        inside = self.norm2(x) * (1 + parts[3]) + parts[4]
        return x + parts[5] * self.mlp(inside)


class DiffusionTransformer(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, case.width, _PATCH, stride=_PATCH)
        self.time = nn.Sequential(
            nn.Linear(1, case.width), nn.SiLU(), nn.Linear(case.width, case.width)
        )
        self.blocks = nn.ModuleList(DiffusionBlock(case.width) for _ in range(case.depth))
        self.norm = nn.LayerNorm(case.width)
        self.head = nn.Linear(case.width, 3 * _PATCH**2)
        self.side = side(case) // _PATCH

    def forward(self, image: Tensor, time: Tensor) -> Tensor:
        x, condition = self.patches(image).flatten(2).transpose(1, 2), self.time(time)
        places = torch.arange(x.shape[1], device=x.device)[None]
        for block in self.blocks:
            x = block(x, condition, places)
        patches = self.head(self.norm(x)).transpose(1, 2).unflatten(2, (self.side, self.side))
        return F.pixel_shuffle(patches, _PATCH)


class Autoencoder(nn.Module):
    """To half the size and back by a transposed convolution."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, case.width, 4, stride=2, padding=1)
        self.blocks = nn.ModuleList(
            nn.Conv2d(case.width, case.width, 3, padding=1) for _ in range(case.depth)
        )
        self.up = nn.ConvTranspose2d(case.width, 3, 4, stride=2, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        x = F.gelu(self.down(image))
        for block in self.blocks:
            x = F.gelu(block(x))
        return cast(Tensor, self.up(x))


def images_twice(case: Case) -> Batch:
    """What goes in is to come out."""
    (image,) = images(case).inputs
    return Batch((image,), image)


def noised_images(case: Case) -> Batch:
    """An image in noise, how much of it, and the noise that is to be found."""
    shape = (case.batch, 3, side(case), side(case))
    noise, time = torch.randn(shape), torch.rand(case.batch, 1)
    amount = time[..., None, None]
    return Batch(((1 - amount) * torch.randn(shape) + amount * noise, time), noise)


_classifier = partial(Architecture, batch=images, loss=cross_entropy, is_image=True)
_denoiser = partial(Architecture, batch=noised_images, loss=squared_error, is_image=True)

VISION = (
    _classifier(name="vit", build=Vit, longest=1024),
    _classifier(name="resnet-frozen", build=partial(ResNet, norm=FrozenBatchNorm), longest=4096),
    _classifier(
        name="resnet-sync",
        build=partial(ResNet, norm=SyncBatchNorm),
        layouts=WHOLE_BATCH,
        longest=4096,
    ),
    _denoiser(name="unet", build=UNet, longest=4096),
    _denoiser(name="dit", build=DiffusionTransformer, longest=1024),
    _classifier(name="mixer", build=Mixer, longest=1024),
    Architecture(
        name="autoencoder",
        build=Autoencoder,
        batch=images_twice,
        loss=squared_error,
        is_image=True,
        longest=4096,
    ),
)
