"""A video through a network that draws frames: at the size and the stride the network was trained with.

A video of any size is brought to that size (its shorter side), redrawn, and brought back: no detail that the network has not
drawn can leave. A network that looks at several frames sees every `skip`-th one, as in training, so that a video is
redrawn as `skip` interleaved ones; those are cut into blocks that are counted from the first frame, whatever the
windows are. Without torch, so that a network in ONNX needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import cv2
import numpy as np

from veil.core import Frames, Veiled

Redraw = Callable[[Frames], Frames]  # clips (N, T, h, w, 3) uint8 to clips; h and w are multiples of STEP
STEP = 16  # pixels


class Shape(NamedTuple):
    """What a network sees of a video at once."""

    side: int  # pixels of the shorter side
    skip: int = 1  # frames from one that it sees to the next
    past: int = 0  # how many it sees before those that it redraws,
    block: int = 1  # redraws together,
    future: int = 0  # and sees after them
    square: bool = False  # whether it knows square pictures only: others are pressed into a square, and back

    def ahead(self, most: int) -> int:
        """How many later frames come before a frame is given out, where about `most` are redrawn at once."""
        unit = self.block * self.skip
        return unit * max(1, most // unit) + self.future * self.skip - 1


def redrawn(windows: Iterable[Frames], redraw: Redraw, shape: Shape, most: int) -> Iterator[Veiled]:
    """Every frame of a video, redrawn; about `most` frames at once, but never less than a block."""
    group = _Group(redraw, shape, max(1, most // (shape.block * shape.skip)))
    for window in windows:
        for frame in window:
            if (drawn := group.add(frame)) is not None:
                yield Veiled(drawn, None)
    for drawn in group.rest():
        yield Veiled(drawn, None)


class _Group:
    """Frames that wait until those that are redrawn together, and those after them that are looked at, are there."""

    def __init__(self, redraw: Redraw, shape: Shape, count: int) -> None:
        """`count`: how many blocks are redrawn at once."""
        self._redraw = redraw
        self._side, self._skip, self._past, self._block, self._future, self._square = shape
        self._unit, self._length = shape.block * shape.skip, shape.block * shape.skip * count
        self._small: list[
            Frames
        ] = []  # those before, those to be redrawn, those after, at the network's size
        self._waiting = 0  # how many of them are to be redrawn
        self._size = (0, 0)

    def add(self, frame: Frames) -> Frames | None:
        """One more frame; redrawn ones, where there are enough."""
        self._size = frame.shape[1], frame.shape[0]
        scale = self._side / min(self._size)
        size = _fitting(self._size[0] * scale), _fitting(self._size[1] * scale)
        if self._square:
            size = self._side, self._side
        how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        small = np.asarray(cv2.resize(frame, size, interpolation=how), np.uint8)
        if not self._small:
            self._small += [small] * self._past * self._skip  # before the first frame nothing moved
        self._small.append(small)
        self._waiting += 1
        ready = self._waiting == self._length + self._future * self._skip
        return self._drawn(self._length) if ready else None

    def rest(self) -> Iterator[Frames]:
        """What still waits when the video is over; after its last frame nothing moves."""
        while self._waiting > 0:
            count = min(self._waiting, self._length)
            needed = count + -count % self._unit
            missing = needed + self._future * self._skip - self._waiting
            self._small += [self._small[-1]] * max(0, missing)
            yield self._drawn(needed)[:count]

    def _drawn(self, count: int) -> Frames:
        """The next `count` frames, redrawn: of each of the interleaved videos some blocks, with what is around them."""
        skip, block, reach = self._skip, self._block, self._past + self._block + self._future
        drawn: list[Any] = [None] * count
        seen = np.stack(self._small[: count + (self._past + self._future) * skip])
        starts = [(phase, first) for phase in range(skip) for first in range(0, count // skip, block)]
        if block == 1 and reach == 1:  # frame by frame: one clip of them all
            drawn[:] = list(self._redraw(seen[None])[0])
        else:
            clips = np.stack([seen[phase::skip][first : first + reach] for phase, first in starts])
            for (phase, first), clip in zip(starts, self._redraw(clips), strict=True):
                at = slice(phase + first * skip, phase + (first + block) * skip, skip)
                drawn[at] = list(clip[self._past : self._past + block])
        self._small = self._small[count:]
        self._waiting -= count
        return np.stack([cv2.resize(frame, self._size, interpolation=cv2.INTER_LINEAR) for frame in drawn])


def _fitting(length: float) -> int:
    """The nearest length that every network takes without padding."""
    return max(STEP, round(length / STEP) * STEP)
