"""Detection where the picture changed: a detector runs only on what changed since it last ran there, within a budget.

Each frame adds ``1 / every`` of a frame to the budget. So with a fixed camera nearly every frame is covered, with a moving
one every `every`-th; cuts, the first frame and every `refresh`-th are covered whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import cv2
import numpy as np
import numpy.typing as npt

from veil.core import Box, Image
from veil.nn.flow import Grey
from veil.people.detectors import Detection, Detector

Signed = npt.NDArray[np.int16]  # (h, w): a small grey picture that can be subtracted
Cells = npt.NDArray[np.bool_]  # one entry for each square of CELL pixels
CELL = 32
AROUND = 32  # pixels of context around what changed
Rectangle = tuple[int, int, int, int]  # x, y, width, height in pixels


class IncrementalDetector:
    """What a detector finds in the newest frame of a video, run again only where the picture changed.

    `every`     frames to one whole run of the detector, on average
    `refresh`   frames after which it runs on the whole frame at the latest
    `keep`      the lowest score that counts
    """

    def __init__(self, detect: Detector, every: int, refresh: int, keep: float):
        self.detect, self.every, self.refresh, self.keep = detect, every, refresh, keep
        self.detections: list[Detection] = []
        self.known: Signed | None = None  # the small grey picture, as it was where the detector last ran
        self.whole = 0  # the frame on which the detector last ran as a whole
        self.budget = 1.0

    def __call__(self, at: int, image: Image, small: Grey, force: bool) -> list[Detection] | None:
        """All detections in frame number `at`, or None where a run would cost more than is left of the budget.

        `small` is the frame as a small grey picture; with `force` the detector runs on the whole frame, whatever it costs.
        """
        self.budget = min(1.0, self.budget + 1 / self.every)
        height, width = image.shape[:2]
        grey = cv2.blur(small, (3, 3)).astype(np.int16)
        everything = np.ones((-(-height // CELL), -(-width // CELL)), bool)
        if self.known is None or force or at - self.whole >= self.refresh:
            area = everything
        else:
            area = self._changed(grey, self.known, everything.shape)
            if area.any() and not self.detect.local:
                area = everything
        parts = self._parts(area, width, height)
        cost = sum(w * h for _, (_, _, w, h) in parts) / (width * height)
        if cost > 0.7:  # one run on everything then is cheaper than several on parts
            area, parts, cost = everything, self._parts(everything, width, height), 1.0
        if cost > self.budget + 1e-9 and not force:
            return None
        self.budget = max(0.0, self.budget - cost)
        if cost == 1.0:
            self.whole = at
        fresh = [d for part, rectangle in parts for d in self._run(image, part, rectangle)]
        self.detections = [d for d in self.detections if not _inside(d.box, area)] + fresh
        self.known = grey if self.known is None else np.where(_as_pixels(area, grey.shape), grey, self.known)
        return self.detections

    def _run(self, image: Image, part: Cells, rectangle: Rectangle) -> Iterator[Detection]:
        """What the detector finds in a rectangle of the image, as far as it lies in the given part."""
        x, y, w, h = rectangle
        for (x0, y0, x1, y1), score in self.detect(image[y : y + h, x : x + w]):
            box = (x0 + x, y0 + y, x1 + x, y1 + y)
            if score >= self.keep and _inside(box, part):
                yield Detection(box, score)

    def _changed(self, grey: Signed, known: Signed, shape: tuple[int, int]) -> Cells:
        """The cells whose picture changed, with their neighbours and with the whole of what was detected there."""
        different = (np.abs(grey - known) > 10).astype(np.float32)
        share = cv2.resize(different, shape[::-1], interpolation=cv2.INTER_AREA)
        area = _grown((share > 0.03).astype(np.uint8))
        for detection in self.detections:
            x0, y0, x1, y1 = detection.box
            w, h = (x1 - x0) / 2, (y1 - y0) / 2
            rows = slice(max(0, int((y0 - h) // CELL)), int((y1 + h) // CELL) + 1)
            cols = slice(max(0, int((x0 - w) // CELL)), int((x1 + w) // CELL) + 1)
            if area[rows, cols].any():
                area[rows, cols] = 1
        return area.astype(bool)

    def _parts(self, area: Cells, width: int, height: int) -> list[tuple[Cells, Rectangle]]:
        """The separate parts of the area, each with the rectangle that holds it and a cell around it."""
        count, labels = cv2.connectedComponents(area.astype(np.uint8))
        parts = []
        for label in range(1, count):
            part = labels == label
            rows, cols = np.flatnonzero(part.any(1)), np.flatnonzero(part.any(0))
            x, w = _span(int(cols[0]) * CELL, int(cols[-1] + 1) * CELL, width)
            y, h = _span(int(rows[0]) * CELL, int(rows[-1] + 1) * CELL, height)
            parts.append((part, (x, y, w, h)))
        return parts


def _span(begin: int, end: int, whole: int) -> tuple[int, int]:
    """Where to cut an axis of length `whole` so as to show begin..end with context: start and length.

    Lengths are multiples of 32, which is what networks take without a change of scale.
    """
    length = -(-(end - begin + 2 * AROUND) // 32) * 32
    if length >= whole:
        return 0, whole
    return min(max(0, (begin + end - length) // 2), whole - length), length


def _grown(cells: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return cv2.dilate(cells, np.ones((3, 3), np.uint8)).astype(np.uint8)


def _inside(box: Box, area: Cells) -> bool:
    row, col = int((box[1] + box[3]) / 2 // CELL), int((box[0] + box[2]) / 2 // CELL)
    return bool(area[min(row, area.shape[0] - 1), min(col, area.shape[1] - 1)])


def _as_pixels(area: Cells, shape: tuple[int, ...]) -> Cells:
    return cv2.resize(area.astype(np.uint8), shape[::-1], interpolation=cv2.INTER_NEAREST).astype(bool)
