"""Geometry of boxes in pixels: how close two are, what lies between them, and which pixels they cover."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from veil.core import Box

Outline = Literal["ellipse", "box"]


def closeness(some: Sequence[Box], others: Sequence[Box]) -> npt.NDArray[np.float64]:
    """How well each of some boxes fits each of others as one moving thing ``(n, m)``.

    1 when equal, 0 or less when they are apart or of quite another size.
    """
    a, b = np.array(some, float).reshape(-1, 1, 4), np.array(others, float).reshape(1, -1, 4)
    a_size, b_size = np.maximum(a[..., 2:] - a[..., :2], 1e-3), np.maximum(b[..., 2:] - b[..., :2], 1e-3)
    ratio = a_size.prod(-1) / b_size.prod(-1)
    distance = np.hypot(*np.moveaxis(a[..., :2] + a[..., 2:] - b[..., :2] - b[..., 2:], -1, 0)) / 2
    near = 1 - distance / ((a_size.sum(-1) + b_size.sum(-1)) / 4)
    return np.where((ratio > 1 / 9) & (ratio < 9), near, 0.0)


def grow(box: Box, share: float) -> Box:
    """The box with `share` of its width and height added on each side."""
    x0, y0, x1, y1 = box
    dx, dy = share * (x1 - x0), share * (y1 - y0)
    return x0 - dx, y0 - dy, x1 + dx, y1 + dy


def interpolate(a: Box, b: Box, share: float) -> Box:
    """The box `share` of the way from `a` to `b`."""
    x0, y0, x1, y1 = (p + share * (q - p) for p, q in zip(a, b, strict=True))
    return x0, y0, x1, y1


def union(a: Box, b: Box) -> Box:
    """The smallest box that holds both."""
    return min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])


def is_visible(box: Box, shape: tuple[int, ...]) -> bool:
    """Whether any of the box lies in an image of this shape."""
    return box[0] < shape[1] and box[1] < shape[0] and box[2] > 0 and box[3] > 0


def to_pixels(box: Box, shape: tuple[int, ...], grid: int = 1) -> tuple[int, int, int, int]:
    """The whole pixels that a box touches, widened to the grid and clipped to the image."""
    x0, y0, x1, y1 = box
    left, top = (max(0, int(np.floor(v / grid)) * grid) for v in (x0, y0))
    right, bottom = (int(np.ceil(v / grid)) * grid for v in (x1, y1))
    return left, top, min(shape[1], right), min(shape[0], bottom)


def mask(box: Box, outline: Outline, window: tuple[int, int, int, int]) -> npt.NDArray[np.bool_]:
    """Which pixels ``(h, w)`` of a window (x0, y0, x1, y1) belong to a region of that outline."""
    x0, y0, x1, y1 = box
    x, y = np.arange(window[0], window[2]) + 0.5, np.arange(window[1], window[3]) + 0.5
    if outline == "box":
        # A pixel that the box touches belongs to it.
        return ((y > y0 - 0.5) & (y < y1 + 0.5))[:, None] & ((x > x0 - 0.5) & (x < x1 + 0.5))
    across, down = max((x1 - x0) / 2, 0.5), max((y1 - y0) / 2, 0.5)
    return (((y - (y0 + y1) / 2) / down) ** 2)[:, None] + ((x - (x0 + x1) / 2) / across) ** 2 <= 1
