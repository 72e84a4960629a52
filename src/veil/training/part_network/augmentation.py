"""Batches for the part network: crops of labelled images, laid over one another and degraded.

Everything is on the training device, the images too: a batch is cropped, composed and degraded there in one go.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from veil.people.parts import SIZE
from veil.training.part_network.dataset import ANY, CANVAS, IGNORE, LabelledImages
from veil.training.part_network.recipe import SOURCE_WEIGHTS, PartRecipe


class PartBatch(NamedTuple):
    """Images and their labels, as the network is trained with them."""

    images: Tensor  # (B, 3, C, C) float in [0, 1]
    labels: Tensor  # (B, C, C) int64
    inside: Tensor  # (B, C, C) bool: where there is an image at all


class Placement(NamedTuple):
    """How images lie in a crop; one number an image."""

    scale: Tensor  # 1: the longer side is as long as the network looks at
    aspect: Tensor  # widened by this, and lowered by as much
    turn: Tensor  # radians
    flip: Tensor  # -1 or 1
    shift: Tensor  # (B, 2) in [-1, 1]: from one edge to the other of the room there is, down and across


def upright(count: int, device: torch.device) -> Placement:
    """Every image as it is, whole and in the middle."""
    one = torch.ones(count, device=device)
    return Placement(one, one, 0 * one, one, torch.zeros(count, 2, device=device))


def random_placement(count: int, device: torch.device, least: float, most: float) -> Placement:
    """Scales between the two (evenly in their logarithm), a little stretched and turned, mirrored half of the time."""
    u = torch.rand(6, count, device=device)
    scale = torch.exp(math.log(least) + u[0] * math.log(most / least))
    turn = torch.deg2rad((u[2] * 2 - 1) * 15)
    return Placement(scale, torch.exp((u[1] - 0.5) * 0.3), turn, (u[3] > 0.5) * 2.0 - 1, u[4:].T * 2 - 1)


def place(labelled: LabelledImages, chosen: Tensor, how: Placement, crop: int, size: int = SIZE) -> PartBatch:
    """The chosen images laid into square crops; outside them the labels are `IGNORE` and the picture is grey."""
    extent = labelled.sizes[chosen].float()  # (B, 2) height and width
    zoom = (how.scale * size / extent.amax(1))[:, None] * torch.stack([1 / how.aspect, how.aspect], 1)
    centre = extent / 2 + how.shift * (extent * zoom - crop).abs() / zoom / 2  # of the crop, in the image
    cos, sin = how.turn.cos()[:, None, None], how.turn.sin()[:, None, None]

    def grid(points: int) -> tuple[Tensor, Tensor]:
        """Where in the image, in its pixels, the centres of a raster of the crop lie."""
        steps = (torch.arange(points, device=chosen.device) + 0.5) * (crop / points) - crop / 2
        down, across = steps[None, :, None], steps[None, None, :] * how.flip[:, None, None]
        y = (cos * down - sin * across) / zoom[:, 0, None, None] + centre[:, 0, None, None]
        x = (sin * down + cos * across) / zoom[:, 1, None, None] + centre[:, 1, None, None]
        return y, x

    y, x = grid(2 * crop)  # twice as fine, then averaged: people who become small must not become jagged
    high, wide = extent[:, 0, None, None], extent[:, 1, None, None]
    y, x = (torch.minimum(axis.clamp(min=0.5), end - 0.5) for axis, end in ((y, high), (x, wide)))
    where = torch.stack([x, y], 3) * (2 / CANVAS) - 1
    image = F.grid_sample(
        labelled.images[chosen].float().div_(255), where, "bilinear", "border", align_corners=False
    )
    image = F.avg_pool2d(image, 2)
    y, x = grid(crop)
    inside = (y >= 0) & (y < high) & (x >= 0) & (x < wide)
    where = torch.stack([x, y], 3) * (2 / CANVAS) - 1
    label = F.grid_sample(
        labelled.labels[chosen][:, None].float(), where, "nearest", "border", align_corners=False
    )
    label = torch.where(inside, label[:, 0].round().long(), IGNORE)
    return PartBatch(torch.where(inside[:, None], image, 127 / 255), label, inside)


class PartAugmentation:
    """Batches for training, sampled and composed on the device that holds the images."""

    def __init__(self, labelled: LabelledImages, recipe: PartRecipe) -> None:
        self.labelled, self.recipe = labelled, recipe
        weights = SOURCE_WEIGHTS if recipe.source_weights is None else recipe.source_weights
        often = torch.tensor(
            [weights.get(source, 1.0) for source in labelled.sources], device=labelled.images.device
        )
        flat = labelled.labels.flatten(1)
        people, ground = ((flat >= 1) & (flat <= ANY)).any(1), (flat == 0).any(1)
        self.cuttable = people & ground  # where the background is not known, a person's outline is not either
        empty = ground & ~people
        self.any, self.empty = often.cumsum(0), (often * empty if bool(empty.any()) else often).cumsum(0)

    def _sample(self, cumulated: Tensor, count: int) -> Tensor:
        at = torch.rand(count, device=cumulated.device) * cumulated[-1]
        return torch.searchsorted(cumulated, at, right=True).clamp_(max=len(cumulated) - 1)

    def __call__(self, count: int) -> PartBatch:
        """As many pictures; random by torch's generator of the device."""
        recipe, device = self.recipe, self.any.device
        mode = torch.rand(count, device=device)
        cut = mode >= recipe.plain + recipe.framed
        empty = cut & (torch.rand(count, device=device) < 0.5)
        below = torch.where(empty, self._sample(self.empty, count), self._sample(self.any, count))
        above = self._sample(self.any, count)
        base = place(self.labelled, below, random_placement(count, device, 0.75, 2.2), recipe.crop)
        over = place(self.labelled, above, random_placement(count, device, 0.25, 1.2), recipe.crop)
        outline = (over.labels >= 1) & (over.labels <= ANY) & self.cuttable[above][:, None, None]
        laid = torch.where(cut[:, None, None], outline, over.inside) & (mode >= recipe.plain)[:, None, None]
        soft = F.avg_pool2d(laid[:, None].float(), 3, 1, 1, count_include_pad=False)
        images = degrade(torch.lerp(base.images, over.images, soft))
        labels = torch.where(laid, over.labels, base.labels)
        return PartBatch(images, labels, laid | base.inside)


def degrade(images: Tensor) -> Tensor:
    """Images ``(B, 3, H, W)`` in other light and colours, blurred, noisy and compress_jpeg, each in its own way."""
    count = len(images)

    def sample(low: float, high: float, share: float = 1.0, rest: float = 0.0, channels: int = 1) -> Tensor:
        u = torch.rand(2, count, channels, 1, 1, device=images.device)
        return torch.where(u[1, :, :1] < share, low + (high - low) * u[0], rest)

    grey = _luminance(images)
    images = torch.lerp(grey, images, sample(0, 0, 0.12, 1.0) * sample(0.4, 1.6))
    middle = images.mean((1, 2, 3), keepdim=True)
    images = (images - middle) * sample(0.6, 1.4) + middle + sample(-0.2, 0.2)
    images = (images * sample(0.85, 1.15, channels=3)).clamp(1e-4, 1) ** sample(0.7, 1.5)
    low = F.interpolate(F.avg_pool2d(images, 3, 3, ceil_mode=True), images.shape[-2:], mode="bilinear")
    images = torch.lerp(images, low, sample(0, 1, 0.25))
    images = torch.lerp(images, F.avg_pool2d(images, 3, 1, 1, count_include_pad=False), sample(0, 1, 0.4))
    images = images + sample(0, 0.07, 0.4) * torch.randn_like(images)
    return torch.lerp(images, compress_jpeg(images, sample(15, 90)), sample(1, 1, 0.5)).clamp(0, 1)


def _luminance(images: Tensor) -> Tensor:
    weights = torch.tensor([0.299, 0.587, 0.114], device=images.device)
    return (images * weights[:, None, None]).sum(1, keepdim=True)


def compress_jpeg(images: Tensor, quality: Tensor) -> Tensor:
    """What JPEG at these qualities, ``(B, 1, 1, 1)`` of 1 to 100, leaves of images whose sides are multiples of 8."""
    height, width = images.shape[-2:]
    luminance = _luminance(images)
    planes = torch.cat([luminance, images[:, :1] - luminance, images[:, 2:] - luminance], 1)
    number = torch.arange(8.0, device=images.device)
    waves = (
        torch.cos(torch.pi / 8 * torch.outer(number, number + 0.5)) / 2
    )  # (8, 8), orthonormal: a wave a row
    waves = torch.cat([waves[:1] / math.sqrt(2), waves[1:]])
    steps = (32 + 6 * (number[:, None] + number)) / 2 / 255  # about the standard's: coarser for finer waves
    steps = steps * torch.where(quality < 50, 50 / quality, 2 - quality / 50)[..., None, None]
    blocks = planes.unflatten(3, (width // 8, 8)).unflatten(2, (height // 8, 8))
    blocks = blocks.transpose(3, 4)  # (B, 3, H/8, W/8, 8, 8)
    rounded = (waves @ blocks @ waves.T / steps).round() * steps
    planes = (waves.T @ rounded @ waves).transpose(3, 4).flatten(4, 5).flatten(2, 3)
    luminance, red, blue = planes.split(1, 1)
    red, blue = red + luminance, blue + luminance
    return torch.cat([red, (luminance - 0.299 * red - 0.114 * blue) / 0.587, blue], 1)
