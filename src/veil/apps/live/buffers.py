"""The two buffers of a live video: raw frames before the method, anonymized frames after it."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import NamedTuple

from veil.core import Frames

SPARE = 64  # frames that may wait for their time, besides those that the method looks ahead


class RawFrame(NamedTuple):
    """A frame as the source sent it: for the method only."""

    frame: Frames  # (H, W, 3)
    at: float  # capture time, seconds of the monotonic clock
    video: int  # number of the connection by which it came


class AnonymizedFrame(NamedTuple):
    """A frame that the method gave out."""

    frame: Frames  # (H, W, 3)
    at: float  # capture time


class RawQueue:
    """The newest frames that the method has not taken; older ones are dropped."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._frames: deque[RawFrame] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self.dropped = 0

    def put(self, frame: RawFrame) -> None:
        """Append a frame, and drop the oldest where the queue is full."""
        with self._changed:
            self._frames.append(frame)
            while len(self._frames) > self._size:
                self._frames.popleft()
                self.dropped += 1
            self._changed.notify_all()

    def wait(self) -> int | None:
        """Wait for a frame, and return the number of its video; None: there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._ended)
            return self._frames[0].video if self._frames else None

    def take(self, video: int) -> RawFrame | None:
        """The next frame of a video; None: the video is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._ended)
            if not self._frames or self._frames[0].video != video:
                return None
            return self._frames.popleft()

    def end(self) -> None:
        """Accept no more frames; those in the queue may still be taken."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class DelayBuffer:
    """Anonymized frames that wait for their time.

    A method that looks `ahead` gives frames out late and often several at once. Each is shown with the same delay, the largest
    of the last ones, so that the motion is as even as it was captured.
    """

    def __init__(self, ahead: int | None) -> None:
        self._ahead = ahead
        self._frames: deque[AnonymizedFrame] = deque()
        self._size = (ahead or 0) + SPARE
        self._delays: deque[float] = deque(maxlen=max(8, min(256, 2 * ((ahead or 0) + 1))))
        self._changed = threading.Condition()
        self.failing = False
        self.dropped = 0

    def put(self, frame: AnonymizedFrame) -> None:
        """Append a frame, and drop the oldest where the buffer is full."""
        with self._changed:
            self.failing = False
            self._delays.append(time.monotonic() - frame.at)
            self._frames.append(frame)
            if len(self._frames) > self._size:
                self._frames.popleft()
                self.dropped += 1
            self._changed.notify_all()

    def fail(self) -> None:
        """The method has failed: frames it gave out before may be shown, and no others are waited for."""
        with self._changed:
            self.failing = True
            self._changed.notify_all()

    @property
    def delay(self) -> float:
        """Seconds from capture to display; 0 for a method that does not look ahead."""
        return max(self._delays, default=0.0) if self._ahead != 0 else 0.0

    def next_due(self, wait: float, *, now: bool = False) -> AnonymizedFrame | None:
        """The next frame, when its time has come or `now`; None after `wait` seconds."""
        until = time.monotonic() + wait
        with self._changed:
            while True:
                left = until - time.monotonic()
                if self._frames:
                    early = 0.0 if now else self._frames[0].at + self.delay - time.monotonic()
                    if early <= 0:
                        return self._frames.popleft()
                    left = min(left, early)
                if time.monotonic() >= until:
                    return None
                self._changed.wait(max(0.001, left))
