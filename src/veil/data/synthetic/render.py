"""Rasterization of soft shapes on many frames at once, on a CPU or a GPU.

A shape is a rounded box whose radius may change along its axis: a disc, a capsule, a limb, a plank or a
shadow. Its signed distance gives the antialiased edge, its light the shading. A frame is cut into tiles,
and a shape is drawn only on the tiles that it touches: the farthest shape of every tile first, then the
second of every tile, and so on, so that the number of steps is the largest number of shapes on one tile and not the
total number of shapes or frames.

Every step on pixels is one exactly rounded operation (+, ×, √, min, max), so that a frame never depends on
the other frames of its batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

TILE = 16  # pixels; smaller tiles waste fewer pixels and cost more bookkeeping

# The columns of a shape; lengths are pixels.
X, Y, UX, UY, LONG, WIDE, RADIUS, TAPER, EDGE, ALPHA, LIGHT, RED, GREEN, BLUE, DEPTH = range(15)

_SUN = (-0.5, -0.87)  # the light comes from the upper left
_RIM = 0.55  # the fraction of its light that a shape loses at its rim


def make_shapes(
    x: Tensor | float,
    y: Tensor | float,
    *,
    axis: tuple[Tensor | float, Tensor | float] = (1.0, 0.0),  # a unit vector
    long: Tensor | float = 0.0,  # half the length of the box inside, along the axis
    wide: Tensor | float = 0.0,  # and across
    radius: Tensor | float = 1.0,
    taper: Tensor | float = 0.0,  # growth of the radius along the axis
    edge: Tensor | float = 1.0,  # width of the edge, from opaque to clear
    alpha: Tensor | float = 1.0,
    light: Tensor | float = 0.2,  # how much brighter the lit side is
    color: Tensor,  # (..., 3) in [0, 1]
    depth: Tensor | float = 0.0,  # the greater, the nearer
) -> Tensor:
    """Shapes ``(..., 15)`` of whatever shape the arguments broadcast to."""
    columns = [x, y, *axis, long, wide, radius, taper, edge, alpha, light, *color.unbind(-1), depth]
    like = color
    tensors = [torch.as_tensor(column, dtype=like.dtype, device=like.device) for column in columns]
    return torch.stack(torch.broadcast_tensors(*tensors), dim=-1)


def tile_counts(height: int, width: int) -> tuple[int, int]:
    """The rows and columns of tiles that cover a frame."""
    return math.ceil(height / TILE), math.ceil(width / TILE)


def to_tiles(images: Tensor) -> Tensor:
    """Images ``(F, 3, H, W)``, whose sides are whole tiles, as tiles."""
    frames, _, height, width = images.shape
    tiles = images.reshape(frames, 3, height // TILE, TILE, width // TILE, TILE).permute(0, 2, 4, 1, 3, 5)
    return tiles.reshape(frames, height // TILE, width // TILE, 3, TILE**2)


def to_images(tiles: Tensor) -> Tensor:
    """Tiles as images ``(F, 3, H, W)``, whose sides are whole tiles."""
    frames, rows, columns = tiles.shape[:3]
    images = tiles.view(frames, rows, columns, 3, TILE, TILE).permute(0, 3, 1, 4, 2, 5)
    return images.reshape(frames, 3, rows * TILE, columns * TILE)


def rasterize(tiles: Tensor, shapes: Tensor) -> None:
    """Draw shapes ``(F, K, 15)``, far before near, onto tiles ``(F, rows, columns, 3, TILE²)``, in place."""
    _, rows, columns = tiles.shape[:3]
    order = shapes[..., DEPTH].argsort(dim=1, stable=True)
    shapes = shapes.gather(1, order[..., None].expand_as(shapes))
    frame, shape, row, column = _touched(shapes, rows, columns)  # one entry for each shape on each tile: M
    shapes = shapes[frame, shape]  # (M, 15)
    near = _touches(shapes, row, column)
    shapes, place = shapes[near], ((frame * rows + row) * columns + column)[near]
    row, column = row[near], column[near]
    turn = _order_on_tile(place)
    by_turn = turn.argsort(stable=True)
    counts: list[int] = turn.bincount().tolist()
    ramps = _ramps(shapes[by_turn], row[by_turn], column[by_turn])
    places = place[by_turn].split(counts)
    flat = tiles.view(-1, 3, TILE**2)
    for where, *what in zip(places, *(ramp.split(counts) for ramp in ramps), strict=True):
        _blend(flat, where, *what)


def _touched(shapes: Tensor, rows: int, columns: int) -> tuple[Tensor, ...]:
    """Which tiles the upright boxes around shapes touch: frame, shape, row and column, far shapes first."""
    x, y, ux, uy, long, wide, radius, taper, edge, alpha = shapes[..., :10].unbind(-1)
    reach = radius + taper.abs() * long + edge / 2
    half_x = ux.abs() * long + uy.abs() * wide + reach
    half_y = uy.abs() * long + ux.abs() * wide + reach
    left, right = ((x - half_x) / TILE)[..., None], ((x + half_x) / TILE)[..., None]
    top, bottom = ((y - half_y) / TILE)[..., None], ((y + half_y) / TILE)[..., None]
    column, row = torch.arange(columns, device=x.device), torch.arange(rows, device=x.device)
    in_column = (column < right) & (column + 1 > left) & (alpha > 0.004)[..., None]  # (F, K, columns)
    in_row = (row < bottom) & (row + 1 > top)
    return (in_row[..., :, None] & in_column[..., None, :]).nonzero(as_tuple=True)


def _touches(shapes: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Whether a shape (M, 15) may change a tile: whether it is nearer to its centre than its corner is."""
    x, y, ux, uy, long, wide, radius, taper, edge = shapes[:, :9].unbind(1)
    dx, dy = (column + 0.5) * TILE - x, (row + 0.5) * TILE - y
    u, v = dx * ux + dy * uy, dy * ux - dx * uy
    along = torch.maximum(torch.minimum(u, long), -long)
    across = (v.abs() - wide).clamp_min(0)
    reach = radius + taper * along + edge / 2 + TILE * math.sqrt(0.5)
    return (u - along).square() + across.square() < reach.square()


def _order_on_tile(place: Tensor) -> Tensor:
    """How many entries before this one have the same place."""
    ordered, order = place.sort(stable=True)
    index = torch.arange(len(place), device=place.device)
    fresh = torch.ones_like(ordered, dtype=torch.bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    begin = torch.where(fresh, index, 0).cummax(0).values
    return torch.empty_like(place).index_copy_(0, order, index - begin)


def _ramps(shapes: Tensor, row: Tensor, column: Tensor) -> tuple[Tensor, ...]:
    """The values of a shape on one tile: (M, TILE) ramps that add up to coordinates and light, and constants."""
    x, y, ux, uy, long, wide, radius, taper, edge, alpha, light = shapes[:, :11, None].unbind(1)  # (M, 1)
    step = torch.arange(TILE, device=shapes.device, dtype=shapes.dtype) + 0.5
    dx, dy = column[:, None] * TILE - x + step, row[:, None] * TILE - y + step  # (M, TILE)
    thick = radius + wide
    glow = light / (thick + 0.35 * (ux * _SUN[0] + uy * _SUN[1]).abs() * long)
    # 1 + light · (towards the sun − nearness of the rim): a round thing, lit from one side
    lit = dx * (glow * _SUN[0]) + (1 - 0.5 * _RIM * light)
    spine = torch.stack([long, wide, radius, taper, -1 / edge, alpha, light * _RIM / thick], 1)  # (M, 7, 1)
    color = shapes[:, RED : BLUE + 1, None]
    return dx * ux, dy * uy, -dx * uy, dy * ux, lit, dy * (glow * _SUN[1]), spine, color


def _blend(
    tiles: Tensor,
    place: Tensor,
    ux: Tensor,
    uy: Tensor,
    vx: Tensor,
    vy: Tensor,
    lx: Tensor,
    ly: Tensor,
    spine: Tensor,
    color: Tensor,
) -> None:
    """Draw one shape on each of M different tiles."""
    long, wide, radius, taper, sharp, alpha, rim = spine.unbind(1)  # (M, 1)
    count = len(place)
    u = (ux[:, None, :] + uy[:, :, None]).view(count, -1)  # (M, TILE²)
    v = (vx[:, None, :] + vy[:, :, None]).view(count, -1)
    along = torch.minimum(u, long)
    along = torch.maximum(along, -long, out=along)
    v = v.abs_().sub_(wide).clamp_min_(0)
    distance = u.sub_(along).square_().add_(v.square_()).sqrt_()
    distance.sub_(along.mul_(taper).add_(radius))  # to the edge, in pixels; negative inside
    shade = (lx[:, None, :] + ly[:, :, None]).view(count, -1)
    shade.sub_(torch.mul(distance, rim, out=v))
    cover = distance.mul_(sharp).add_(0.5).clamp_(0, 1).mul_(alpha)
    old = tiles.index_select(0, place)  # (M, 3, TILE²)
    new = (shade[:, None, :] * color).sub_(old).mul_(cover[:, None, :]).add_(old)
    tiles.index_copy_(0, place, new)


def mirror_pad(images: Tensor, size: int) -> Tensor:
    """Images ``(B, 3, H, W)`` extended to the right by their mirror images, for `crop_views`."""
    twice = torch.cat([images, images.flip(3)], dim=3)
    return torch.cat([twice, twice[..., : size + TILE + 1]], dim=3)


def crop_views(images: Tensor, which: Tensor, shift: Tensor, size: int) -> Tensor:
    """The camera's views of images from `mirror_pad`: ``(F, 3, size, size)``, rounded up to whole tiles.

    Frame i shows image ``which[i]``, ``shift[i]`` = (x, y) pixels right of and below its centre; beyond its sides the
    image is mirrored.
    """
    rows, columns = tile_counts(size, size)
    height, width = rows * TILE, columns * TILE
    period = images.shape[3] - size - TILE - 1
    left = (shift[:, 0] + (period / 2 - size) / 2).remainder(period)
    top = (shift[:, 1] + (images.shape[2] - size) / 2).clamp(0, images.shape[2] - height - 1)
    x, y = left.floor(), top.floor()
    windows = images.unfold(2, height + 1, 1).unfold(3, width + 1, 1)  # (B, 3, ., ., height + 1, width + 1)
    seen = windows.permute(0, 2, 3, 1, 4, 5)[which, y.long(), x.long()]  # (F, 3, height + 1, width + 1)
    right, down = (left - x)[:, None, None, None], (top - y)[:, None, None, None]
    seen = seen[:, :, :-1] * (1 - down) + seen[:, :, 1:] * down
    return seen[..., :-1] * (1 - right) + seen[..., 1:] * right


def expose(images: Tensor, light: Tensor, gain: Tensor, grain: Tensor, size: int) -> Tensor:
    """Images as frames of the sensor: ``(F, size, size, 3)`` uint8.

    ``light`` is ``(size, size)``, ``gain`` ``(F, 3)`` and ``grain``, in grey levels, ``(F, 3, size, size)``.
    """
    levels = (images[:, :, :size, :size] * light).mul_((255 * gain)[:, :, None, None])
    levels = levels.add_(grain).add_(0.5).clamp_(0, 255).to(torch.uint8)
    return levels.permute(0, 2, 3, 1).contiguous()
