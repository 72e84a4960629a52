"""One live video from start to end.

::

    source ──▶ queue (a few frames) ──▶ method ──▶ delay buffer ──▶ window, file, MJPEG, RTSP
     reader thread                   worker thread              the caller's thread

*Never a raw frame.* The sinks see the delay buffer only, which holds frames that the method gave out, and placeholder frames that
are drawn here, where the source is silent or the method fails.

*Never behind.* Frames that the method has no time for are dropped before the method: the queue holds the newest. So the order
is kept, and no frame is shown twice.

*A known delay.* A method that looks `n` frames ahead gives each out `n` frames later, often several at once. The delay buffer
spreads them out again.

After a reconnection, the source is a new video to the method, which starts anew.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Protocol

from veil.apps.live.buffers import DelayBuffer, RawQueue
from veil.apps.live.display import Display
from veil.apps.live.outputs import open_live_sink
from veil.apps.live.sinks import TICKS, LiveSink
from veil.apps.live.threads import Log, MethodWorker, SourceReader
from veil.core import Anonymizer, VeilError
from veil.media.sources import open_source
from veil.media.video import VideoInfo, VideoSource

QUEUE = 2  # raw frames that wait for the method; half of those it looks ahead, where that is more
FLUSH = 10.0  # seconds that the method has to give out what it holds, at the end


@dataclass(frozen=True)
class LiveSummary:
    """Counts and delays of a live video."""

    captured: int = 0  # frames that the source sent
    shown: int = 0
    dropped: int = 0  # before the method, which was busy
    late: int = 0  # after the method: they missed their time
    failed: int = 0  # held by the method when it failed
    placeholders: int = 0
    reconnections: int = 0
    restarts: int = 0  # of the method
    seconds: float = 0.0
    delay: tuple[float, float] = (0.0, 0.0)  # milliseconds from capture to display: median, 95th percentile

    def sentence(self) -> str:
        """For the screen."""
        rate = self.shown / self.seconds if self.seconds else 0.0
        median, high = self.delay
        text = (
            f"{self.shown} of {self.captured} frames shown in {self.seconds:.0f} s ({rate:.1f} a second), "
            f"{self.dropped} dropped; delay {median:.0f} ms in the median, {high:.0f} ms at the 95th percentile."
        )
        counts = {
            "late frames": self.late,
            "frames lost with the method": self.failed,
            "placeholder frames": self.placeholders,
            "reconnections": self.reconnections,
            "restarts of the method": self.restarts,
        }
        if more := [f"{count} {name}" for name, count in counts.items() if count]:
            text += f" Also: {', '.join(more)}."
        return text


class SourceOpener(Protocol):
    """Opens the source; again, when it has vanished."""

    def __call__(self) -> VideoSource:
        """A fresh source, or a VeilError."""
        ...


def live(
    source: str | Path | SourceOpener,
    to: Sequence[str | LiveSink],
    method: Anonymizer,
    *,
    loop: bool = False,
    seconds: float | None = None,
    reconnect_timeout: float | None = None,
    share_on_network: bool = False,
    token: str | None = None,
    overwrite: bool = False,
    stop: threading.Event | None = None,
    log: Log = lambda message: None,
) -> LiveSummary:
    """Anonymize a source until it ends, `seconds` are over, `stop` is set, or Ctrl-C.

    source              the number of a camera, the URL of a stream, a file (played at its own speed), or a `SourceOpener`
    to                  ``window``, a video file, ``http://127.0.0.1:PORT``, ``rtsp://…``, or a `LiveSink`; one or several
    loop                play a file again and again
    reconnect_timeout   seconds after which a vanished source is not waited for any more; None: it is waited for without end
    token               what viewers must give; needed, with `share_on_network`, where other machines are to see it

    Raises `VeilError` when the source cannot be reached at first, or the method fails again and again; a file that was begun is
    complete, also then.
    """
    if not to:
        raise VeilError(
            "there is no output: pass --to window, a file, http://127.0.0.1:8090 or rtsp://…",
            code="output-missing",
        )
    reopen = source if callable(source) else lambda: open_source(source)
    stop = stop or threading.Event()
    first = reopen()
    buffer = DelayBuffer(method.ahead())
    sinks: list[LiveSink] = []
    try:
        info = replace(first.info, time_base=Fraction(1, TICKS), frames=None)
        for place in to:
            sink = (
                open_live_sink(place, info, share=share_on_network, token=token, overwrite=overwrite)
                if isinstance(place, str)
                else place
            )
            sinks.append(sink)
            if message := sink.describe():
                log(message)
    except BaseException:
        first.close()
        _close(sinks)
        raise
    log(_describe_delay(method, first.info))
    queue = RawQueue(max(QUEUE, (method.ahead() or 0) // 2))
    reader = SourceReader(first, reopen, queue, loop=loop, reconnect_timeout=reconnect_timeout, log=log)
    worker = MethodWorker(method, queue, buffer, log)
    started = time.monotonic()
    display = Display(info, sinks, buffer, reader)
    try:
        with _stopped_by_signals(stop):
            reader.start()
            worker.start()
            while worker.is_alive() and not stop.is_set():
                if seconds is not None and time.monotonic() - started >= seconds:
                    break
                if not display.step(0.05):
                    break  # the window was closed
        reader.end()
        queue.end()
        flush_until = time.monotonic() + FLUSH
        while worker.is_alive() and time.monotonic() < flush_until:
            display.flush(wait=0.05)
        worker.join(0.1)
        display.flush(wait=0.0)
    finally:
        reader.end()
        queue.end()
        _close(sinks)
    summary = LiveSummary(
        captured=reader.captured,
        shown=display.shown,
        dropped=queue.dropped,
        late=display.late + buffer.dropped,
        failed=worker.failed_frames,
        placeholders=display.placeholders,
        reconnections=reader.reconnections,
        restarts=worker.restarts,
        seconds=time.monotonic() - started,
        delay=display.delay_percentiles(),
    )
    if error := worker.error or reader.error:
        raise error
    return summary


def _describe_delay(method: Anonymizer, info: VideoInfo) -> str:
    """Size and rate of the source, and the delay of the method, for the screen."""
    name, ahead = method.name, method.ahead()
    size = f"{info.width}×{info.height} at {float(info.fps):.4g} frames a second"
    if ahead is None:
        return f"{size}; the delay of {name} is unknown."
    if not ahead:
        return f"{size}; {name} does not look ahead: the delay is the time of one frame."
    return (
        f"{size}; {name} looks {ahead} frames ahead: the delay is {1000 * ahead / float(info.fps):.0f} ms, and more where "
        "frames are dropped."
    )


def _close(sinks: Sequence[LiveSink]) -> None:
    """Close all sinks, also where one fails, and raise the first error."""
    failed: list[Exception] = []
    for sink in sinks:
        try:
            sink.close()
        except Exception as error:
            failed.append(error)
    if failed:
        raise failed[0]


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM end the video cleanly; a second one ends the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(*_: object) -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop.set()

    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        with suppress(ValueError):
            for number, handler in before.items():
                signal.signal(number, handler)
