"""Regions of faces or people in every frame of a video: a detector, tracks, and a margin around them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import cv2
import numpy as np

from veil.core import Image, Region
from veil.people.boxes import Outline, grow, is_visible
from veil.people.detectors import Detection, Detector, Kind, detector
from veil.people.tracks import TrackingOptions, track


class RegionDefaults(NamedTuple):
    """How a detection becomes a region."""

    outline: Outline
    margin: float  # of its size, added on each side
    threshold: float
    hold: int  # frames for which a lost track is held: a face may have turned away, a body not


DEFAULTS = {"face": RegionDefaults("ellipse", 0.45, 0.2, 0), "person": RegionDefaults("box", 0.1, 0.25, 90)}


def find_regions(
    images: Iterable[Image],
    kind: Kind,
    margin: float | None = None,
    threshold: float | None = None,
    name: str | None = None,
    every: int = TrackingOptions.every,
    longest: int | None = None,
) -> Iterator[tuple[Image, tuple[Region, ...]]]:
    """Each image with its regions of that kind, grown by `margin`; None: the values of `DEFAULTS`, and the default detector.

    `every`: see `TrackingOptions`; `longest`: larger images are scaled down for the detector to this longer side.
    """
    margin = DEFAULTS[kind].margin if margin is None else margin
    threshold = DEFAULTS[kind].threshold if threshold is None else threshold
    options = TrackingOptions(confirm=threshold, keep=0.6 * threshold, every=every, hold=DEFAULTS[kind].hold)
    detect = detector(kind, name)
    if longest is not None:
        detect = _Downscaled(detect, longest)
    for image, regions in track(images, detect, kind, options):
        larger = (region._replace(box=grow(region.box, margin)) for region in regions)
        yield image, tuple(region for region in larger if is_visible(region.box, image.shape))


class _Downscaled:
    """A detector that runs on smaller images; the scale is that of the first one, which is a whole frame."""

    def __init__(self, detect: Detector, longest: int):
        self.local, self._detect, self._longest = detect.local, detect, longest
        self._scale: float | None = None

    def __call__(self, image: Image) -> list[Detection]:
        if self._scale is None:
            self._scale = min(1.0, self._longest / max(image.shape[:2]))
        if self._scale == 1:
            return self._detect(image)
        height, width = (max(1, round(side * self._scale)) for side in image.shape[:2])
        small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)
        across, down = image.shape[1] / width, image.shape[0] / height
        return [
            Detection((x0 * across, y0 * down, x1 * across, y1 * down), score)
            for (x0, y0, x1, y1), score in self._detect(small)
        ]


def find_all_regions(
    images: Iterable[Image], kinds: Sequence[Kind], *, every: int, longest: int
) -> Iterator[tuple[Image, tuple[Region, ...]]]:
    """Each image with its regions of all these kinds; see `find_regions`."""
    stream: Iterator[tuple[Image, tuple[Region, ...]]] = ((image, ()) for image in images)
    for kind in kinds:
        stream = _with_kind(stream, kind, every, longest)
    return stream


def _with_kind(
    stream: Iterator[tuple[Image, tuple[Region, ...]]], kind: Kind, every: int, longest: int
) -> Iterator[tuple[Image, tuple[Region, ...]]]:
    before: deque[tuple[Region, ...]] = deque()  # of the images that this kind's tracker holds back

    def images() -> Iterator[Image]:
        for image, regions in stream:
            before.append(regions)
            yield image

    for image, regions in find_regions(images(), kind, every=every, longest=longest):
        yield image, before.popleft() + regions
