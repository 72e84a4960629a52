"""What surrounds the people in synthetic videos: the background image, an item on the floor, and an occluder.

Background, palette and positions are random, and independent of people and actions.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from veil.data.synthetic.backgrounds import BACKGROUNDS, HORIZON, BackgroundShape
from veil.data.synthetic.people import View, uniform
from veil.data.synthetic.render import TILE, make_shapes, rasterize, to_images, to_tiles

BACKGROUND_WIDTH = 1.75  # in frames
_ITEMS = ("ball", "box", "bag")
_GROUPS = 10


class _BackgroundTable(NamedTuple):
    """All backgrounds in one table; K is the largest number of shapes of one."""

    numbers: Tensor  # (BACKGROUNDS, K, 10): the fields of a shape but its colour
    colors: Tensor  # (BACKGROUNDS, 3, K, 3)
    base: Tensor  # (BACKGROUNDS, 3, 4, 3): high, low, far, near


@functools.cache
def _background_table(device: torch.device) -> _BackgroundTable:
    most = max(len(place.shapes) for place in BACKGROUNDS.values())
    numbers = torch.zeros(len(BACKGROUNDS), most, len(BackgroundShape._fields) - 1, dtype=torch.float64)
    colors, base = torch.zeros(len(BACKGROUNDS), 3, most, 3), torch.zeros(len(BACKGROUNDS), 3, 4, 3)
    for i, place in enumerate(BACKGROUNDS.values()):
        named, flat = place.palettes(), place.shapes
        numbers[i, : len(flat)] = torch.tensor([shape[1:] for shape in flat], dtype=torch.float64)
        colors[i, :, : len(flat)] = torch.tensor([named[shape.color] for shape in flat]).transpose(0, 1)
        base[i] = torch.tensor([named[name] for name in ("high", "low", "far", "near")]).transpose(0, 1)
    return _BackgroundTable(numbers.to(device), colors.double().to(device), base.to(device))


def background_images(seed: int, place: Tensor, key: Tensor, size: int) -> Tensor:
    """Images ``(B, 3, height, width)``, wider than a frame, of the backgrounds with these numbers."""
    table = _background_table(place.device)
    palette = (uniform(seed, "palette", key, 1)[:, 0] * 3).long()
    shift = 0.3 * (uniform(seed, "things", key, _GROUPS) - 0.5)
    tint = 0.95 + 0.1 * uniform(seed, "tint", key, 1)[:, :, None]
    x, y, w, h, soft, angle, light, edge, alpha, group = table.numbers[place].unbind(-1)  # (B, K)
    x = x + torch.where(group > 0, shift.gather(1, group.long()), 0.0)
    width, height = (
        _whole(BACKGROUND_WIDTH * size),
        _whole(1.14 * size) + TILE,
    )  # one tile more than is ever visible
    top = (height - size) / 2
    turn = angle.deg2rad()
    shapes = make_shapes(
        width / 2 + x * size,
        top + y * size,
        axis=(turn.cos(), turn.sin()),
        long=(w - soft).clamp_min(0) * size,
        wide=(h - soft).clamp_min(0) * size,
        radius=(soft * size).clamp_min(0.3),
        edge=(edge * size / 112).clamp_min(1),
        alpha=alpha,
        light=light,
        color=table.colors[place, palette] * tint,
        depth=torch.arange(x.shape[1], device=x.device, dtype=x.dtype),
    ).float()
    step = (torch.arange(height, device=x.device) + 0.5 - top) / size
    wall = (step / HORIZON).clamp(0, 1)[:, None]  # (height, 1)
    floor = ((step - HORIZON) / (1 - HORIZON)).clamp(0, 1)[:, None]
    high, low, far, near = table.base[place, palette][:, :, None].unbind(1)  # (B, 1, 3)
    rows = torch.where(floor > 0, far + (near - far) * floor, high + (low - high) * wall)  # (B, height, 3)
    tiles = to_tiles(rows.transpose(1, 2)[..., None].expand(-1, -1, -1, width))
    rasterize(tiles, shapes)
    return to_images(tiles)


def _whole(pixels: float) -> int:
    return -(-int(pixels) // TILE) * TILE


class SceneObjects(NamedTuple):
    """The item on the floor and the occluder; every tensor is ``(B,)``."""

    item: Tensor  # index into _ITEMS, -1: none
    item_x: Tensor  # metres
    item_z: Tensor
    occluder: Tensor  # -1: none, 0: a post, 1: a hedge
    occluder_x: Tensor  # fraction of the frame
    shade: Tensor  # (B, 3) colour of both


def item_shapes(objects: SceneObjects, which: Tensor, at: Tensor, view: View) -> Tensor:
    """The item at ``at`` (F, 3), on the floor or in a hand: shapes ``(F, 6, 15)``."""
    x, y = view.project(at[:, None, None])
    x, y, scale = x[:, 0], y[:, 0], view.scale[:, :1]  # (F, 1)
    kind, color = objects.item[which][:, None], objects.shade[which]
    pale = color + (1 - color) * 0.6

    def of(
        name: str, dx: float, dy: float, w: float, h: float, r: float, tone: Tensor, nearer: float
    ) -> Tensor:
        return make_shapes(
            x + dx * scale,
            y + dy * scale,
            long=(w - r) * scale,
            wide=(h - r) * scale,
            radius=r * scale,
            alpha=(kind == _ITEMS.index(name)).double(),
            light=0.3,
            color=tone[:, None],
            depth=at[:, None, 2] + nearer,
        )

    return torch.cat([
        of("ball", 0, -0.11, 0.11, 0.11, 0.11, color, 0.0),
        of("ball", -0.02, -0.13, 0.045, 0.045, 0.045, pale, 0.01),
        of("box", 0, -0.09, 0.12, 0.09, 0.012, color, 0.0),
        of("box", 0, -0.09, 0.022, 0.09, 0.008, pale, 0.01),
        of("bag", 0, -0.1, 0.1, 0.1, 0.045, color, 0.0),
        of("bag", 0, -0.2, 0.05, 0.035, 0.03, color * 0.7, -0.01),
    ], dim=1)  # fmt: skip


def occluder_shapes(objects: SceneObjects, which: Tensor, shift: Tensor, size: int) -> Tensor:
    """A post or a hedge in the foreground: shapes ``(F, 4, 15)`` in the frames of videos ``which``."""
    kind, color = objects.occluder[which][:, None], objects.shade[which]
    x = (0.5 + objects.occluder_x[which])[:, None] * size - 1.3 * shift[:, :1]
    y = -1.3 * shift[:, 1:]

    def of(number: int, dx: float, cy: float, w: float, h: float, r: float, tone: Tensor) -> Tensor:
        return make_shapes(
            x + dx * size,
            y + cy * size,
            long=(w - r) * size,
            wide=(h - r) * size,
            radius=r * size,
            edge=2.0 * size / 112,
            alpha=(kind == number).double(),
            light=0.25,
            color=tone[:, None],
            depth=50.0 + w,
        )

    green = color * 0.3 + torch.tensor([0.18, 0.36, 0.2], device=color.device, dtype=color.dtype)
    return torch.cat([
        of(0, 0, 0.5, 0.028, 0.62, 0.01, 0.14 + 0.22 * color),
        of(1, -0.09, 0.99, 0.085, 0.085, 0.085, green),
        of(1, 0.02, 1.0, 0.1, 0.1, 0.1, green * 0.92),
        of(1, 0.12, 1.02, 0.08, 0.08, 0.08, green * 1.06),
    ], dim=1)  # fmt: skip
