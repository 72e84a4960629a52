"""Where the labels of a plot go, so that they cover neither each other nor what is drawn; in pixels, y downwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

LETTER_WIDTH, LINE_HEIGHT = 7.2, 15.0  # of text of 12 pixels, in the widest of the usual fonts
_ANGLES = (0, 180, 90, 270, 45, 315, 135, 225, 22, 338, 158, 202)
_REACHES = (9, 14, 22, 32, 44, 58, 74, 92, 112)


class PlotBox(NamedTuple):
    """A rectangle of a plot, in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """The point of the box that is nearest to another point."""
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)


def overlaps(boxes: Sequence[PlotBox], others: Sequence[PlotBox]) -> npt.NDArray[np.float64]:
    """The area that each box shares with each of the others."""
    a, b = np.reshape(boxes, (-1, 1, 4)).astype(float), np.reshape(others, (1, -1, 4)).astype(float)
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])  # (boxes, others, 2)
    return sides.clip(0).prod(-1)


def place_labels(
    points: Sequence[tuple[float, float]], widths: Sequence[float], taken: Sequence[PlotBox], frame: PlotBox
) -> list[PlotBox]:
    """A box for each label, near its point, inside the frame."""
    turns = [(math.cos(math.radians(angle)), -math.sin(math.radians(angle))) for angle in _ANGLES]
    far = np.add.outer(8.0 * np.arange(len(_REACHES)), 0.3 * np.arange(len(turns))).ravel()
    placed: dict[int, PlotBox] = {}
    for _ in range(3):  # again, once the others are placed
        for i, ((x, y), wide) in enumerate(zip(points, widths, strict=True)):
            corners = [
                (x + reach * dx + (dx - 1) / 2 * wide, y + reach * dy + (dy - 1) / 2 * LINE_HEIGHT)
                for reach in _REACHES
                for dx, dy in turns
            ]
            choices = [PlotBox(left, top, left + wide, top + LINE_HEIGHT) for left, top in corners]
            labels = [box for k, box in placed.items() if k != i]
            outside = wide * LINE_HEIGHT - overlaps(choices, [frame])[:, 0]
            covered = overlaps(choices, [*taken, *labels]).sum(1)
            crossed = overlaps([spot for box in choices for spot in _leader(x, y, box)], labels).sum(1)
            cost = 10 * outside + 4 * covered + 4 * crossed.reshape(len(choices), -1).sum(1) + far
            placed[i] = choices[int(cost.argmin())]
    return [placed[i] for i in range(len(points))]


def _leader(x: float, y: float, box: PlotBox) -> list[PlotBox]:
    """Spots on the line from a point to its label."""
    near_x, near_y = box.nearest(x, y)
    spots = [(x + part * (near_x - x), y + part * (near_y - y)) for part in (0.3, 0.5, 0.7, 0.9)]
    return [PlotBox(left - 2, top - 2, left + 2, top + 2) for left, top in spots]
