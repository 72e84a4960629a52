"""A video through a network of clips: at the size and the stride that the network was trained with.

A video of any size is resized to that size (its shorter side), anonymized, and resized back: no detail that the network did
not produce can leave. A network that sees several frames sees every `skip`-th one, as in training, so that a video is
anonymized as `skip` interleaved ones; those are cut into blocks that are counted from the first frame, whatever the
windows are. Without torch, so that a network in ONNX needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import cv2
import numpy as np

from veil.core import Frames, Veiled

ClipFunction = Callable[
    [Frames], Frames
]  # clips (N, T, h, w, 3) uint8 to clips; h and w are multiples of STEP
STEP = 16  # pixels


class ClipContext(NamedTuple):
    """What a network sees of a video at once."""

    side: int  # pixels of the shorter side
    skip: int = 1  # frames from one that it sees to the next
    past: int = 0  # frames that it sees before those that it anonymizes,
    block: int = 1  # anonymizes together,
    future: int = 0  # and sees after them
    square: bool = False  # whether it takes square frames only: others are stretched into a square, and back

    def ahead(self, chunk: int) -> int:
        """How many later frames are needed before a frame is output, where about `chunk` are anonymized at once."""
        unit = self.block * self.skip
        return unit * max(1, chunk // unit) + self.future * self.skip - 1


def anonymized(
    windows: Iterable[Frames], anonymize: ClipFunction, context: ClipContext, chunk: int
) -> Iterator[Veiled]:
    """Every frame of a video, anonymized; about `chunk` frames at once, but never less than a block."""
    queue = _FrameQueue(anonymize, context, max(1, chunk // (context.block * context.skip)))
    for window in windows:
        for frame in window:
            if (frames := queue.add(frame)) is not None:
                yield Veiled(frames, None)
    for frames in queue.rest():
        yield Veiled(frames, None)


class _FrameQueue:
    """Frames that wait until those that are anonymized together, and those seen after them, have arrived."""

    def __init__(self, anonymize: ClipFunction, context: ClipContext, blocks: int) -> None:
        """`blocks`: how many are anonymized at once."""
        self._anonymize = anonymize
        self._side, self._skip, self._past, self._block, self._future, self._square = context
        self._unit, self._length = context.block * context.skip, context.block * context.skip * blocks
        self._small: list[Frames] = []  # past, waiting and future frames, at the network's size
        self._waiting = 0  # how many of them are to be anonymized
        self._size = (0, 0)

    def add(self, frame: Frames) -> Frames | None:
        """One more frame; anonymized ones, where there are enough."""
        self._size = frame.shape[1], frame.shape[0]
        scale = self._side / min(self._size)
        size = _multiple(self._size[0] * scale), _multiple(self._size[1] * scale)
        if self._square:
            size = self._side, self._side
        interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        small = np.asarray(cv2.resize(frame, size, interpolation=interpolation), np.uint8)
        if not self._small:
            self._small += [small] * self._past * self._skip  # before the first frame nothing moved
        self._small.append(small)
        self._waiting += 1
        ready = self._waiting == self._length + self._future * self._skip
        return self._next(self._length) if ready else None

    def rest(self) -> Iterator[Frames]:
        """The frames that still wait when the video is over; after its last frame nothing moves."""
        while self._waiting > 0:
            count = min(self._waiting, self._length)
            needed = count + -count % self._unit
            missing = needed + self._future * self._skip - self._waiting
            self._small += [self._small[-1]] * max(0, missing)
            yield self._next(needed)[:count]

    def _next(self, count: int) -> Frames:
        """The next `count` frames, anonymized: some blocks of each of the interleaved videos, with their context."""
        skip, block, reach = self._skip, self._block, self._past + self._block + self._future
        output: list[Any] = [None] * count
        seen = np.stack(self._small[: count + (self._past + self._future) * skip])
        starts = [(phase, first) for phase in range(skip) for first in range(0, count // skip, block)]
        if block == 1 and reach == 1:  # frame by frame: one clip of them all
            output[:] = list(self._anonymize(seen[None])[0])
        else:
            clips = np.stack([seen[phase::skip][first : first + reach] for phase, first in starts])
            for (phase, first), clip in zip(starts, self._anonymize(clips), strict=True):
                at = slice(phase + first * skip, phase + (first + block) * skip, skip)
                output[at] = list(clip[self._past : self._past + block])
        self._small = self._small[count:]
        self._waiting -= count
        return np.stack([cv2.resize(frame, self._size, interpolation=cv2.INTER_LINEAR) for frame in output])


def _multiple(length: float) -> int:
    """The nearest length that every network takes without padding."""
    return max(STEP, round(length / STEP) * STEP)
