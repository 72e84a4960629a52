"""The two threads of a live video: one reads the source, one runs the method."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from veil.apps.live.buffers import AnonymizedFrame, DelayBuffer, RawFrame, RawQueue
from veil.core import Anonymizer, Frames, VeilError
from veil.media.video import VideoSource

MAX_FAILURES = 3  # of the method in a row
BACK_OFF = (0.5, 15.0)  # seconds to the first reconnection attempt, and at most between two

Log = Callable[[str], None]


class SourceReader(threading.Thread):
    """Reads the source, a file at its own speed, and reconnects when it has vanished."""

    def __init__(
        self,
        first: VideoSource,
        reopen: Callable[[], VideoSource],
        queue: RawQueue,
        *,
        loop: bool,
        reconnect_timeout: float | None,
        log: Log,
    ) -> None:
        super().__init__(name="veil-live-reader", daemon=True)
        self._source: VideoSource | None = first
        self._reopen, self._queue, self._loop, self._log = reopen, queue, loop, log
        self._timeout = reconnect_timeout
        self._ended = threading.Event()
        self.captured = self.reconnections = self.videos = 0
        self.last_frame_at = time.monotonic()
        self.error: VeilError | None = None

    def run(self) -> None:
        """Read until the source ends or `end` is called."""
        try:
            while not self._ended.is_set():
                source = self._source
                if source is None:
                    break
                why = self._read(source)
                self._source = None if self._ended.is_set() else self._next(source, why)
        except Exception as error:  # whatever a driver raises: the video ends, and no raw frame is shown
            self.error = VeilError(
                f"the source cannot be read any more ({type(error).__name__}): start again.",
                code="source-unreadable",
            )
        finally:
            self._queue.end()

    def _read(self, source: VideoSource) -> VeilError | None:
        """Queue every frame of a source; returns the error that ended it, if there was one."""
        number, zero = self.videos, None
        self.videos += 1
        try:
            for window in source.windows():
                for frame, (pts, _) in zip(window.frames, window.times, strict=True):
                    if not source.live:
                        seconds = float(pts * source.info.time_base)
                        zero = time.monotonic() - seconds if zero is None else zero
                        self._ended.wait(max(0.0, zero + seconds - time.monotonic()))
                    if self._ended.is_set():
                        return None
                    self.last_frame_at = time.monotonic()
                    self.captured += 1
                    self._queue.put(RawFrame(frame, self.last_frame_at, number))
        except VeilError as error:
            return error
        finally:
            source.close()
        return None

    def _next(self, source: VideoSource, why: VeilError | None) -> VideoSource | None:
        """The source again: a looped file at once, a vanished source when it is back; None: it is over."""
        if not source.live and not self._loop:
            self.error = why
            return None
        if not source.live:
            return self._reopen()
        self._log("the source is gone: reconnecting.")
        pause, longest = BACK_OFF
        gone = time.monotonic()
        while not self._ended.wait(pause):
            try:
                found = self._reopen()
            except VeilError as error:
                why = error
            else:
                self.reconnections += 1
                self._log("the source is back.")
                return found
            if self._timeout is not None and time.monotonic() - gone >= self._timeout:
                self.error = VeilError(
                    f"the source did not come back within {self._timeout:g} s ({why}): see whether it still runs.",
                    code="source-gone",
                )
                return None
            pause = min(longest, 2 * pause)
        return None

    def end(self) -> None:
        """Stop reading; may be called from any thread."""
        self._ended.set()
        if source := self._source:
            source.stop()


class MethodWorker(threading.Thread):
    """Takes raw frames, runs the method, and buffers what comes out."""

    def __init__(self, method: Anonymizer, queue: RawQueue, buffer: DelayBuffer, log: Log) -> None:
        super().__init__(name="veil-live-method", daemon=True)
        self._method, self._queue, self._buffer, self._log = method, queue, buffer, log
        self.restarts = self.failed_frames = 0
        self.error: VeilError | None = None

    def run(self) -> None:
        """Run the method on one video after the other; restart it where it fails."""
        failures = 0
        while (video := self._queue.wait()) is not None:
            waiting: deque[float] = deque()
            given = 0
            try:
                for frame in self._anonymized(video, waiting):
                    self._buffer.put(frame)
                    given += 1
                if waiting:
                    raise RuntimeError(f"the method kept {len(waiting)} frames back")
                failures = 0
            except Exception as error:  # of any kind: a frame that the method did not give out is not shown
                self.failed_frames += len(waiting)
                self._buffer.fail()
                failures = 1 if given else failures + 1
                # An error that the user must mend, such as missing weights, ends it at once.
                if failures >= MAX_FAILURES or (isinstance(error, VeilError) and not given):
                    self.error = _final_error(error)
                    break
                self.restarts += 1
                self._log(f"the method failed ({type(error).__name__}) and is restarted.")
        self._queue.end()

    def _anonymized(self, video: int, waiting: deque[float]) -> Iterator[AnonymizedFrame]:
        """The frames of one video after the method, each with its capture time."""
        shape: list[tuple[int, ...]] = []

        def windows() -> Iterator[Frames]:
            while (raw := self._queue.take(video)) is not None:
                shape[:] = [raw.frame.shape]
                waiting.append(raw.at)
                yield raw.frame[None]

        for frames, *_ in self._method.stream(windows()):
            if len(frames) > len(waiting) or frames.shape[1:] != shape[0] or frames.dtype != np.uint8:
                raise RuntimeError(
                    f"the method returned frames {frames.shape} for {len(waiting)} of shape {shape}"
                )
            for frame in frames:
                yield AnonymizedFrame(frame, waiting.popleft())


def _final_error(error: Exception) -> VeilError:
    if isinstance(error, VeilError):
        return error
    final = VeilError(
        f"the method failed {MAX_FAILURES} times in a row ({type(error).__name__}: {error}), and no raw frame was shown: "
        "choose another one.",
        code="method-failing",
    )
    final.__cause__ = error
    return final
