"""Filters: nothing to learn. Blur, pixelate, blacken, mask, downsample and noise, on the frame, on faces or on people.

What each does to a picture, or to the part of it inside a region::

    blur        x * g(σ)           Gaussian of `kernel` x `kernel` pixels
    pixelate    mean over blocks   of `block` x `block` pixels, on a grid fixed to the frame
    blacken     0
    mask        mean of the region
    downsample  up(down(x, n), n)  averages over n x n pixels, then bilinear, so that the size stays
    noise       x + σ n            n from the standard normal distribution, for each value apart

Regions come from `veil.people.regions`, are grown by `margin` of their size on each side and cut to `shape`.
"""

from __future__ import annotations

import secrets
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import cv2
import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from veil.core import Anonymizer, Frames, Image, Region, Target, Veiled
from veil.people.boxes import Outline, mask, to_pixels
from veil.people.regions import DEFAULTS, find_regions
from veil.people.tracks import TrackingOptions

Where = Literal["face", "person", "frame"]
CHECKED = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class Filter(Anonymizer):
    """A change of pixels in the whole frame or in regions of it."""

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}
    GRID: ClassVar[str | None] = (
        None  # the parameter that gives the grid, in pixels, to which regions are aligned
    )

    region: Annotated[Where, Field(description="what is hidden")] = "face"
    shape: Annotated[
        Outline | None,
        Field(description="shape of a region [ellipse for faces, box for people]"),
    ] = None
    margin: Annotated[
        float | None,
        Field(
            ge=0,
            le=5,
            description="grow regions on each side by this share of their size [face 0.45, person 0.1]",
        ),
    ] = None
    threshold: Annotated[
        float | None,
        Field(
            gt=0,
            lt=1,
            description="how sure a detector must be at least once; lower hides more [face 0.2, person 0.25]",
        ),
    ] = None
    detector: Annotated[
        str | None,
        Field(description="another detector: a name that `veil doctor` lists, or a YOLOX .onnx file"),
    ] = None

    @abstractmethod
    def change(self, image: Image, inside: npt.NDArray[np.bool_] | None) -> Image:
        """The changed picture ``(h, w, 3)``; `inside` ``(h, w)`` marks the pixels that will be used (None: all)."""

    def targets(self) -> tuple[Target, ...]:
        """The region, unless it is the whole frame."""
        return () if self.region == "frame" else (Target(self.region),)

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        """See `Anonymizer.stream`."""
        if self.region == "frame":
            for frames in windows:
                yield Veiled(np.stack([self.change(image, None) for image in frames]), None)
            return
        images = (image for frames in windows for image in frames)
        outline = DEFAULTS[self.region].outline if self.shape is None else self.shape
        for image, regions in find_regions(images, self.region, self.margin, self.threshold, self.detector):
            yield Veiled(self._hide(image, regions, outline)[None], [regions])

    def ahead(self) -> int:
        """See `Anonymizer`."""
        return 0 if self.region == "frame" else TrackingOptions.max_gap

    def _hide(self, image: Image, regions: Iterable[Region], outline: Outline) -> Image:
        hidden = image.copy()
        grid = getattr(self, self.GRID) if self.GRID else 1
        for region in regions:
            x0, y0, x1, y1 = to_pixels(region.box, image.shape, grid)
            if x0 >= x1 or y0 >= y1:
                continue
            within = mask(region.box, outline, (x0, y0, x1, y1))
            changed = self.change(image[y0:y1, x0:x1], within)
            np.copyto(hidden[y0:y1, x0:x1], changed, where=within[..., None])
        return hidden


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class Blur(Filter):
    """Gaussian blur. Large faces need a large kernel: see what is left before you rely on it."""

    PRESETS = {"weak": {"kernel": 13, "sigma": 10.0}, "strong": {"kernel": 21, "sigma": 10.0}}

    kernel: Annotated[
        int, Field(ge=1, le=999, multiple_of=1, description="width of the Gaussian in pixels, odd")
    ] = 21
    sigma: Annotated[
        float, Field(gt=0, le=500, description="standard deviation of the Gaussian in pixels")
    ] = 10.0

    def __post_init__(self) -> None:
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, got {self.kernel}")

    def change(self, image: Image, inside: npt.NDArray[np.bool_] | None) -> Image:
        """Blurred."""
        return cv2.GaussianBlur(
            image, (self.kernel, self.kernel), self.sigma, borderType=cv2.BORDER_REPLICATE
        ).astype(np.uint8)


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class Pixelate(Filter):
    """Square blocks of their mean colour, on a grid that does not move with the face."""

    PRESETS = {"4": {"block": 4}, "16": {"block": 16}}
    GRID = "block"

    block: Annotated[int, Field(ge=2, le=4096, description="side of a block in pixels")] = 16

    def change(self, image: Image, inside: npt.NDArray[np.bool_] | None) -> Image:
        """Pixelated."""
        return _resized(_blocks(image, self.block), image.shape, self.block, cv2.INTER_NEAREST)


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class Blacken(Filter):
    """Black: nothing of the region is left."""

    def change(self, image: Image, inside: npt.NDArray[np.bool_] | None) -> Image:
        """Black."""
        return np.zeros_like(image)


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class Mask(Filter):
    """One colour: the mean of the region (which still shows skin tone and, over time, pulse)."""

    def change(self, image: Image, inside: npt.NDArray[np.bool_] | None) -> Image:
        """The mean colour."""
        pixels = image.reshape(-1, 3) if inside is None or not inside.any() else image[inside]
        return np.broadcast_to(np.rint(pixels.mean(axis=0)).astype(np.uint8), image.shape)


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class Downsample(Filter):
    """Fewer pixels: shrunk by a factor and enlarged to the same size again."""

    PRESETS = {"2x": {"factor": 2}, "4x": {"factor": 4}}
    GRID = "factor"

    region: Annotated[Where, Field(description="what is hidden")] = "frame"
    factor: Annotated[int, Field(ge=2, le=4096, description="how many times smaller in each direction")] = 4

    def change(self, image: Image, inside: npt.NDArray[np.bool_] | None) -> Image:
        """Shrunk and enlarged."""
        return _resized(_blocks(image, self.factor), image.shape, self.factor, cv2.INTER_LINEAR)


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class Noise(Filter):
    """Noise that is new in every pixel and frame: to compare with, for it costs much and hides little."""

    region: Annotated[Where, Field(description="what is hidden")] = "frame"
    amount: Annotated[
        float, Field(gt=0, le=10, description="standard deviation, where black is 0 and white 1")
    ] = 0.3
    seed: Annotated[
        int | None,
        Field(ge=0, description="makes an experiment repeatable, and the noise predictable [unpredictable]"),
    ] = None

    def change(self, image: Image, inside: npt.NDArray[np.bool_] | None) -> Image:
        """Noisy."""
        # The picture is part of the key, so that how a video is cut into windows makes no difference.
        rng = np.random.default_rng([self._key, zlib.crc32(image.tobytes())])
        noise = rng.standard_normal(image.shape, np.float32)
        return np.clip(np.rint(image + 255 * self.amount * noise), 0, 255).astype(np.uint8)

    @cached_property
    def _key(self) -> int:
        return secrets.randbits(128) if self.seed is None else self.seed


def _blocks(image: Image, side: int) -> Image:
    """The mean over blocks of `side` x `side` pixels; the last row and column are repeated to fill the last blocks."""
    height, width = image.shape[:2]
    full = cv2.copyMakeBorder(image, 0, -height % side, 0, -width % side, cv2.BORDER_REPLICATE)
    return cv2.resize(
        full, (full.shape[1] // side, full.shape[0] // side), interpolation=cv2.INTER_AREA
    ).astype(np.uint8)


def _resized(blocks: Image, shape: tuple[int, ...], side: int, how: int) -> Image:
    """Blocks enlarged by `side` and cut to `shape` (the inverse of the fill of `_blocks`)."""
    large = cv2.resize(blocks, (blocks.shape[1] * side, blocks.shape[0] * side), interpolation=how)
    return large[: shape[0], : shape[1]].astype(np.uint8)
