"""What the sinks are given: anonymized frames when their time has come, and placeholder frames when there are none."""

from __future__ import annotations

import time
from collections import deque

import cv2
import numpy as np

from veil.apps.live.buffers import AnonymizedFrame, DelayBuffer
from veil.apps.live.sinks import TICKS, LiveSink
from veil.apps.live.threads import SourceReader
from veil.core import Frames
from veil.media.video import VideoInfo

STALL = 2.0  # seconds without a frame until a placeholder is shown
REPEAT = 0.5  # seconds between two placeholders
MAX_LATE = 0.5  # seconds: a frame that missed its time by more is not shown


class Display:
    """Gives the sinks frames and placeholders, in the order of their times."""

    def __init__(
        self, info: VideoInfo, sinks: list[LiveSink], buffer: DelayBuffer, reader: SourceReader
    ) -> None:
        self._info, self._sinks, self._buffer, self._reader = info, sinks, buffer, reader
        self._zero = time.monotonic() - 1  # so that placeholders before the first frame have a time
        self._tick = -1  # of what was shown last
        self._placeholder_at = self._frame_at = 0.0  # when each was shown last
        self._delays: deque[float] = deque(maxlen=100_000)
        self.shown = self.late = self.placeholders = 0

    def step(self, wait: float) -> bool:
        """Show what is due within some seconds; False: a sink wants no more."""
        frame = self._buffer.next_due(wait)
        if frame is not None:
            return self._show_frame(frame)
        reason = self._reason()
        if reason and time.monotonic() - self._placeholder_at >= REPEAT:
            return self._show_placeholder(reason)
        return all(sink.poll() for sink in self._sinks)

    def flush(self, wait: float) -> None:
        """Show what is left without waiting for its time."""
        while (frame := self._buffer.next_due(wait, now=True)) is not None:
            self._show_frame(frame, flushing=True)

    def _show_frame(self, frame: AnonymizedFrame, *, flushing: bool = False) -> bool:
        now = time.monotonic()
        tick = self._ticks(frame.at)
        behind = now - frame.at - self._buffer.delay
        # A late frame is dropped only where others follow: a slow method shows what it has.
        if tick <= self._tick or (behind > MAX_LATE and self._buffer.delay and not flushing):
            self.late += 1
            return True
        self._tick = tick
        wanted = self._give(
            fit_frame(frame.frame, self._info.width, self._info.height), tick, placeholder=False
        )
        self.shown += 1
        self._frame_at = time.monotonic()
        self._delays.append(self._frame_at - frame.at)
        return wanted

    def _show_placeholder(self, reason: str) -> bool:
        self._placeholder_at = time.monotonic()
        self._tick += 1
        if self.shown:
            self._tick = max(self._tick, self._ticks(self._placeholder_at - self._buffer.delay))
        self.placeholders += 1
        frame = placeholder_frame(self._info.width, self._info.height, reason)
        return self._give(frame, self._tick, placeholder=True)

    def _give(self, frame: Frames, tick: int, *, placeholder: bool) -> bool:
        wanted = [sink.show(frame, tick, placeholder=placeholder) for sink in self._sinks]  # to all of them
        return all(wanted)

    def _reason(self) -> str:
        """Why there is no frame, where that needs a placeholder."""
        if self._buffer.failing:
            return "the method failed"
        now = time.monotonic()
        if now - self._reader.last_frame_at > STALL:
            return "no signal"
        if not self.shown:
            return "starting"
        return "waiting for the method" if now - self._frame_at > STALL + 2 * self._buffer.delay else ""

    def _ticks(self, at: float) -> int:
        return round((at - self._zero) * TICKS)

    def delay_percentiles(self) -> tuple[float, float]:
        """Milliseconds from capture to display: the median, and the 95th percentile."""
        if not self._delays:
            return 0.0, 0.0
        median, high = np.percentile(list(self._delays), [50, 95])
        return 1000 * float(median), 1000 * float(high)


def placeholder_frame(width: int, height: int, reason: str) -> Frames:
    """A frame ``(H, W, 3)`` with the reason why there is no video; nothing of any raw frame is in it."""
    frame = np.full((height, width, 3), 24, np.uint8)
    font, scale = cv2.FONT_HERSHEY_SIMPLEX, max(0.3, min(width / 480, height / 240))
    (across, down), _ = cv2.getTextSize(reason, font, scale, 1)
    origin = max(0, (width - across) // 2), min(height - 1, (height + down) // 2)
    cv2.putText(frame, reason, origin, font, scale, (200, 200, 200), max(1, round(scale)), cv2.LINE_AA)
    return frame


def fit_frame(frame: Frames, width: int, height: int) -> Frames:
    """A frame of the given size: one of another size is scaled and centred on black."""
    if frame.shape[:2] == (height, width):
        return frame
    scale = min(width / frame.shape[1], height / frame.shape[0])
    w, h = max(1, round(frame.shape[1] * scale)), max(1, round(frame.shape[0] * scale))
    out = np.zeros((height, width, 3), np.uint8)
    y, x = (height - h) // 2, (width - w) // 2
    out[y : y + h, x : x + w] = cv2.resize(frame, (w, h), interpolation=cv2.INTER_AREA)
    return out
