"""Where the people of the synthetic world are: painted places, things on the floor, and things in the way.

Every video draws a place, one of its palettes, and where its things stand, by chance, whoever is in it and
whatever they do.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from veil.data.synthetic.people import View, chance
from veil.data.synthetic.places import HORIZON, PLACES, Thing
from veil.data.synthetic.render import TILE, make_shapes, paint, to_pictures, to_tiles

REACH = 1.75  # the width of a place, in frames
_THINGS = ("ball", "box", "bag")
_GROUPS = 10


class _Table(NamedTuple):
    """All places side by side; K is the most things that one has."""

    numbers: Tensor  # (PLACES, K, 10): a thing's fields but its colour
    colors: Tensor  # (PLACES, 3, K, 3)
    base: Tensor  # (PLACES, 3, 4, 3): high, low, far, near


@functools.cache
def _table(device: torch.device) -> _Table:
    most = max(len(place.things) for place in PLACES.values())
    numbers = torch.zeros(len(PLACES), most, len(Thing._fields) - 1, dtype=torch.float64)
    colors, base = torch.zeros(len(PLACES), 3, most, 3), torch.zeros(len(PLACES), 3, 4, 3)
    for i, place in enumerate(PLACES.values()):
        named, things = place.palettes(), place.things
        numbers[i, : len(things)] = torch.tensor([thing[1:] for thing in things], dtype=torch.float64)
        colors[i, :, : len(things)] = torch.tensor([named[thing.color] for thing in things]).transpose(0, 1)
        base[i] = torch.tensor([named[name] for name in ("high", "low", "far", "near")]).transpose(0, 1)
    return _Table(numbers.to(device), colors.double().to(device), base.to(device))


def place_pictures(seed: int, place: Tensor, key: Tensor, size: int) -> Tensor:
    """Pictures ``(B, 3, height, width)``, wider than a frame, of the places with these numbers."""
    table = _table(place.device)
    palette = (chance(seed, "palette", key, 1)[:, 0] * 3).long()
    shift = 0.3 * (chance(seed, "things", key, _GROUPS) - 0.5)
    tint = 0.95 + 0.1 * chance(seed, "tint", key, 1)[:, :, None]
    x, y, w, h, soft, angle, light, edge, alpha, group = table.numbers[place].unbind(-1)  # (B, K)
    x = x + torch.where(group > 0, shift.gather(1, group.long()), 0.0)
    width, height = _whole(REACH * size), _whole(1.14 * size) + TILE  # a tile more than is ever looked at
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
    paint(tiles, shapes)
    return to_pictures(tiles)


def _whole(pixels: float) -> int:
    return -(-int(pixels) // TILE) * TILE


class Stage(NamedTuple):
    """What stands among the people; every tensor is ``(B,)``."""

    thing: Tensor  # index into _THINGS, -1: none
    thing_x: Tensor  # metres
    thing_z: Tensor
    occluder: Tensor  # -1: none, 0: a post, 1: a hedge
    occluder_x: Tensor  # share of the frame
    shade: Tensor  # (B, 3) colour of both


def thing_shapes(stage: Stage, which: Tensor, at: Tensor, view: View) -> Tensor:
    """What lies on the floor, or is in a hand, at ``at`` (F, 3): shapes ``(F, 6, 15)``."""
    x, y = view.see(at[:, None, None])
    x, y, scale = x[:, 0], y[:, 0], view.scale[:, :1]  # (F, 1)
    kind, color = stage.thing[which][:, None], stage.shade[which]
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
            alpha=(kind == _THINGS.index(name)).double(),
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


def occluder_shapes(stage: Stage, which: Tensor, shift: Tensor, size: int) -> Tensor:
    """A post or a hedge before everything: shapes ``(F, 4, 15)`` in the frames of videos ``which``."""
    kind, color = stage.occluder[which][:, None], stage.shade[which]
    x = (0.5 + stage.occluder_x[which])[:, None] * size - 1.3 * shift[:, :1]
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
