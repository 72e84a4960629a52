"""Noise that moves as the picture moves: it hides what is there and shows how it moves.

After "Selective, Interpretable and Motion Consistent Privacy Attribute Obfuscation for Action Recognition" (Ilic, Zhao,
Pock and Wildes, CVPR 2024). For a frame x at time t, its noise n, a saliency s and the backward flow B::

    n(p, 1)  ~ U[μ - σ, μ + σ]                    for each pixel and channel                         (Eq. 3)
    n(p, t)  = n(p + B(p, t), 1)                                                                     (Eq. 4)
    out(p)   = x(p) + s(p) (n(p) - x(p))                                                             (Eq. 5)

Eq. 4 takes from the first frame's noise by the flow of one step, so under a constant velocity the noise stands still
from the second frame on. Paper: Eq. 4. Here: `recursive`, because only then does the noise move as the picture does::

    n(p, t)  = n(p + B(p, t), t - 1)              fresh noise where there was nothing to take

*Grains.* The noise is made of grains, one a pixel. Each keeps its value, and its offset r from the middle of the pixel it
is shown in (a fraction of a pixel, so that slow motion adds up). A pixel takes the grain whose place is nearest to
``p + B(p)``; no two pixels take the same one: the second gets a new grain, as does a pixel that was not to be seen
before. So values are never mixed (the noise does not fade), never repeated (it does not smear), and each frame alone
is exactly independent uniform noise, whatever the picture shows. From frame to frame it shows the motion, and with it
the outline and the gait of people; its range shows the mean colour and the contrast of the video, unless it is full.

*It cannot be reproduced.* The bytes come from SHAKE-128 under a key of fresh entropy that is written nowhere: unlike
those of a statistical generator, they cannot be predicted from other bytes of the same stream.

What `soft` leaves: ``x = (out - s n) / (1 - s)`` given n, and two frames with different s give both x and n.
It is for comparison with the paper; `hard` leaves nothing of x where the mask is set.
"""

from __future__ import annotations

import hashlib
import secrets
from functools import lru_cache
from typing import Literal, get_args

import cv2
import numpy as np
import numpy.typing as npt

from veil.nn.flow import FlowEstimator, Image, Motion, MotionEstimator, enlarge, grid, warp

Carry = Literal["recursive", "eq4", "released", "iid", "static"]
Range = Literal["video", "full"]
Mode = Literal["hard", "soft"]
Saliency = npt.NDArray[np.bool_] | npt.NDArray[np.float32]  # (H, W), from 0 to 1


class CarriedNoise:
    """The noise of one video, frame by frame.

    `carry` is how it moves: ``recursive`` with the picture; ``eq4`` as the paper's Eq. 4, ``released`` as its code
    (by forward flow, from the first frame's noise), ``iid`` new in each frame, ``static`` not at all: to compare with.
    `levels` is its range: that of the video so far (Eq. 3) or all there is. A `seed` makes it repeatable, and known.
    """

    def __init__(
        self,
        carry: Carry = "recursive",
        levels: Range = "video",
        seed: int | None = None,
        estimator: FlowEstimator | None = None,
    ):
        for value, choice in ((carry, Carry), (levels, Range)):
            if value not in get_args(choice):
                raise ValueError(f"one of {', '.join(get_args(choice))} is needed, got {value!r}")
        self.motion: Motion | None = None  # of the newest frame; None for the first
        self._carry = carry
        self._motions = MotionEstimator(estimator)
        self._levels = Levels() if levels == "video" else None
        self._random = _KeyedStream(seed)
        self._grains: _Grains | None = None
        self._first: Image | None = None

    def step(self, image: Image) -> Image:
        """The noise ``(H, W, 3)`` for the next frame."""
        self.motion = self._motions.step(image)
        noise = self._moved(image.shape[:2], self.motion)
        if self._levels is None:
            return noise
        return self._levels.step(image, self.motion is not None and self.motion.cut)(noise)

    def _moved(self, size: tuple[int, int], motion: Motion | None) -> Image:
        if self._carry == "iid":
            return self._random.pixels(size)
        if self._carry == "recursive":
            if self._grains is None:
                self._grains = _Grains(size, self._random)
            elif motion is not None:
                self._grains.move(motion)
            return self._grains.image()
        if self._first is None:
            self._first = self._random.pixels(size)
        if motion is None or self._carry == "static":
            return self._first.copy()
        return (_eq4 if self._carry == "eq4" else _released)(self._first, motion)


def blend(
    image: Image, noise: Image, mask: Saliency, mode: Mode = "hard", *, threshold: float = 0.5
) -> Image:
    """The frame with noise under `mask` ``(H, W)``.

    ``hard``: where the mask is at least `threshold`, the noise and nothing else. ``soft``: Eq. 5, which mixes.
    A value that is not a number hides.
    """
    if image.shape != noise.shape or image.shape[:2] != mask.shape:
        raise ValueError(
            f"frame, noise and mask must be of one size, got {image.shape}, {noise.shape}, {mask.shape}"
        )
    if mode == "hard":
        shown = (mask < threshold) if mask.dtype != np.bool_ else ~mask.astype(bool)
        hidden = noise.copy()
        return cv2.copyTo(image, shown.view(np.uint8), hidden).astype(np.uint8, copy=False)
    share = np.clip(np.nan_to_num(mask.astype(np.float32), nan=1.0), 0, 1)[..., None]
    return np.rint(image + share * (noise.astype(np.float32) - image)).astype(np.uint8)


class _KeyedStream:
    """A stream of bytes that cannot be predicted."""

    def __init__(self, seed: int | None):
        self._key = secrets.token_bytes(32) if seed is None else f"seed {seed}".encode().ljust(32)
        self._draws = 0

    def bytes(self, count: int) -> npt.NDArray[np.uint8]:
        self._draws += 1
        digest = hashlib.shake_128(self._key + self._draws.to_bytes(8, "big")).digest(count)
        return np.frombuffer(bytearray(digest), np.uint8)

    def pixels(self, size: tuple[int, int]) -> Image:
        return self.bytes(size[0] * size[1] * 3).reshape(*size, 3)


class _Grains:
    """One grain of noise in each pixel, and how far off the middle of their pixels they lie.

    The grains of one cell of the motion's grid move together, by whole pixels; what is left over is the cell's offset.
    """

    def __init__(self, size: tuple[int, int], random: _KeyedStream):
        self._size, self._random = size, random
        self._numbers = np.arange(size[0] * size[1], dtype=np.int32)
        self._owner = np.empty_like(self._numbers)
        self._draw()

    def _draw(self) -> None:
        rgba = cv2.cvtColor(self._random.pixels(self._size), cv2.COLOR_RGB2RGBA)
        self._value = rgba.reshape(-1).view(np.uint32)  # a pixel is moved as one number
        self._offset: npt.NDArray[np.float32] | None = (
            None  # (h, w, 2): x and y, within half a pixel; None: none
        )
        self.fresh = self._value.size  # how many grains are new in this frame

    def image(self) -> Image:
        rgba = self._value.view(np.uint8).reshape(*self._size, 4)
        return cv2.cvtColor(rgba, cv2.COLOR_RGBA2RGB).astype(np.uint8, copy=False)

    def move(self, motion: Motion) -> None:
        if motion.cut:
            self._draw()
            return
        (height, width), (h, w) = self._size, motion.occluded.shape
        cols, left, right = _cells(w, width)
        rows, top, bottom = _cells(h, height)
        wanted = motion.backward
        if self._offset is not None:
            x, y = grid(h, w)
            x, y = (
                x + motion.backward[..., 0] * np.float32(w / width),
                y + motion.backward[..., 1] * np.float32(h / height),
            )
            wanted = wanted - cv2.remap(
                self._offset, x, y, cv2.INTER_NEAREST, borderMode=cv2.BORDER_REPLICATE
            )
        steps = np.rint(wanted)  # from each cell to where its grains are, in whole pixels
        self._offset = steps - wanted
        dx, dy = steps[..., 0], steps[..., 1]
        inside = (
            (left + dx >= 0)
            & (right + dx < width)
            & (top[:, None] + dy >= 0)
            & (bottom[:, None] + dy < height)
        )
        steps = np.where(inside[..., None], steps, 0).astype(np.int32)
        jump = steps[..., 1].astype(np.intp) * width + steps[..., 0]
        source = jump.take(cols, 1).take(rows, 0).reshape(-1)
        source += self._numbers
        self._value = self._value.take(source)
        self._owner[source] = self._numbers
        new = self._owner.take(source) != self._numbers  # another pixel has that grain
        new |= (motion.occluded | ~inside).take(cols, 1).take(rows, 0).reshape(-1)
        at = np.flatnonzero(new)
        self._value.view(np.uint8).reshape(-1, 4)[at, :3] = self._random.bytes(3 * at.size).reshape(-1, 3)
        self.fresh = at.size


@lru_cache(8)
def _cells(
    cells: int, pixels: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The cell of each pixel along one axis, and the first and the last pixel of each cell."""
    cell = (2 * np.arange(pixels) + 1) * cells // (2 * pixels)
    numbers = np.arange(cells)
    first, last = np.searchsorted(cell, numbers), np.searchsorted(cell, numbers, "right") - 1
    return cell, first.astype(np.float32), last.astype(np.float32)


def _eq4(first: Image, motion: Motion) -> Image:
    """The first frame's noise at ``p + B(p)``; what lies outside is taken from the border."""
    return warp(first, enlarge(motion.backward, first.shape[:2]))


def _released(first: Image, motion: Motion) -> Image:
    """The first frame's noise at ``p + F(p)``, on the released code's grid, which is too wide by half a pixel a side."""
    height, width = first.shape[:2]
    flow = enlarge(motion.forward, (height, width))
    x, y = grid(height, width)
    x = np.rint(x * (width / max(width - 1, 1)) - 0.5 + flow[..., 0])
    y = np.rint(y * (height / max(height - 1, 1)) - 0.5 + flow[..., 1])
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    moved = first.copy()  # what lies outside keeps the first frame's noise at the same place
    moved[inside] = first[y[inside].astype(np.intp), x[inside].astype(np.intp)]
    return moved


class Levels:
    """The range of the noise: mean ± standard deviation of the video so far, or of what is hidden in it, for each channel."""

    LEAST = 16.0  # Paper: σ. Here: at least this, because noise in a video that begins black must show motion too.
    SAMPLE = 1 << 13  # pixels a frame

    def __init__(self, contrast: float = 1.0) -> None:
        self._contrast = contrast  # of σ
        self._count, self._mean, self._square = 0, np.zeros(3), np.zeros(3)
        self._ends: npt.NDArray[np.float64] | None = None  # (2, 3): lowest and highest

    def step(self, image: Image, cut: bool, hidden: npt.NDArray[np.bool_] | None = None) -> Levels:
        """Take the next frame into account, or its `hidden` pixels ``(H, W)`` alone, if there are any."""
        # Paper: of the dataset. Here: of the frames so far, because a stream has no others; the range moves by at most
        # one level of 255 a frame, so that it does not flicker, and in a cut, where all noise is new, by any amount.
        stride = max(1, int((image.shape[0] * image.shape[1] / self.SAMPLE) ** 0.5))
        some = np.ascontiguousarray(image[::stride, ::stride])
        mask = None if hidden is None else np.ascontiguousarray(hidden[::stride, ::stride]).view(np.uint8)
        if mask is not None and not mask.any():
            if self._ends is not None:
                return self
            mask = None
        mean, std = (v[:, 0] for v in cv2.meanStdDev(some, mask=mask))
        self._count += 1
        self._mean += (mean - self._mean) / self._count
        self._square += (std**2 + mean**2 - self._square) / self._count
        sigma = np.sqrt(np.maximum(self._square - self._mean**2, 0))
        half = np.maximum(self._contrast * sigma, self.LEAST)
        ends = np.clip(np.rint([self._mean - half, self._mean + half]), 0, 255)
        if self._ends is not None and not cut:
            ends = np.clip(ends, self._ends - 1, self._ends + 1)
        self._ends = ends
        return self

    def __call__(self, noise: Image) -> Image:
        """Noise of the full range, brought into this one."""
        assert self._ends is not None
        low, high = self._ends
        table = low + np.floor(np.arange(256)[:, None] * (high - low + 1) / 256)
        return cv2.LUT(noise, table.astype(np.uint8)[None]).astype(np.uint8, copy=False)
