"""`veil live`: a camera, a stream or a looped file, anonymized while it is watched.

::

    source ──▶ inbox (a few frames) ──▶ method ──▶ stage ──▶ window, file, MJPEG, RTSP
     reader thread                   worker thread        the caller's thread

*Never a raw frame.* The outputs know the stage only, and on the stage are frames that the method gave out, and cards that are drawn
here. When the source is silent, or the method fails, a card is shown.

*Never behind.* What the method has no time for is dropped before the method: the inbox holds the newest frames. So the order stays,
and no frame is shown twice.

*Late by a known time.* A method that looks `n` frames ahead gives each out `n` frames later, often several at once. The stage
spreads them out again: each is shown as long after it was filmed as the latest of the last ones was.

What a vanished source sends when it is back is a new video to the method, which begins anew with it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple, Protocol

import cv2
import numpy as np

from veil.apps.live_sinks import TICKS, Outlet, open_outlet
from veil.core import Anonymizer, Frames, VeilError
from veil.media.video import VideoInfo, VideoSource, open_source

INBOX = 2  # frames that wait for the method; half of those that it looks ahead, where that is more
STALL = 2.0  # seconds of silence until a card is shown
REPEAT = 0.5  # seconds from card to card
LATE = 0.5  # seconds: a frame that missed its time by more is not shown
RETRIES = 3  # failures of the method without a frame in between
BACK_OFF = (0.5, 15.0)  # seconds to the first and between the last attempts to reach a source
FLUSH = 10.0  # seconds that the method has to give out what it holds, at the end

Say = Callable[[str], None]


class Filmed(NamedTuple):
    """A frame as the source sent it: for the method only."""

    frame: Frames  # (H, W, 3)
    at: float  # seconds of the monotonic clock
    video: int  # which connection it came by


class Shown(NamedTuple):
    """A frame that the method gave out."""

    frame: Frames  # (H, W, 3)
    at: float  # when it was filmed


@dataclass(frozen=True)
class Summary:
    """What happened."""

    filmed: int = 0  # frames that the source sent
    shown: int = 0
    dropped: int = 0  # before the method, which was busy
    late: int = 0  # after the method: their time was over
    failed: int = 0  # with a method that failed
    cards: int = 0
    reconnections: int = 0
    restarts: int = 0  # of the method
    seconds: float = 0.0
    delay: tuple[float, float] = (0.0, 0.0)  # milliseconds from filmed to shown: median, 95th percentile

    def sentence(self) -> str:
        """For the screen."""
        rate = self.shown / self.seconds if self.seconds else 0.0
        middle, most = self.delay
        said = (
            f"{self.shown} of {self.filmed} frames shown in {self.seconds:.0f} s ({rate:.1f} a second), {self.dropped} dropped; "
            f"{middle:.0f} ms late in the median, {most:.0f} ms at the 95th percentile."
        )
        told = {
            "late": self.late,
            "lost with the method": self.failed,
            "cards": self.cards,
            "reconnections": self.reconnections,
            "restarts": self.restarts,
        }
        if more := [f"{count} {name}" for name, count in told.items() if count]:
            said += f" Also: {', '.join(more)}."
        return said


class Opener(Protocol):
    """Opens the source; again, when it has vanished."""

    def __call__(self) -> VideoSource:
        """A fresh source, or a VeilError."""
        ...


def live(
    source: str | Path | Opener,
    to: Sequence[str | Outlet],
    method: Anonymizer,
    *,
    loop: bool = False,
    seconds: float | None = None,
    give_up: float | None = None,
    share_on_network: bool = False,
    token: str | None = None,
    overwrite: bool = False,
    stop: threading.Event | None = None,
    say: Say = lambda words: None,
) -> Summary:
    """Anonymize a source until it ends, `seconds` are over, `stop` is set, or Ctrl-C.

    source    the number of a camera, the URL of a stream, a file (at its own speed, with `loop` again and again), or an `Opener`
    to        ``window``, a video file, ``http://127.0.0.1:PORT``, ``rtsp://…``, or an `Outlet`; several are served at once
    give_up   seconds after which a vanished source is not waited for any more
    token     what viewers must give; needed, with `share_on_network`, where others than this machine are to see it

    Raises `VeilError` when the source cannot be reached at first, or the method fails again and again; a file that was begun is
    whole, also then.
    """
    if not to:
        raise VeilError(
            "there is nowhere to show it: give --to window, a file, http://127.0.0.1:8090 or rtsp://…"
        )
    open_again = source if callable(source) else lambda: open_source(source)
    stop = stop or threading.Event()
    first = open_again()
    stage = _Stage(method.ahead())
    outlets: list[Outlet] = []
    try:
        info = replace(first.info, time_base=Fraction(1, TICKS), frames=None)
        for place in to:
            made = (
                open_outlet(place, info, share=share_on_network, token=token, overwrite=overwrite)
                if isinstance(place, str)
                else place
            )
            outlets.append(made)
            if words := made.words():
                say(words)
    except BaseException:
        first.close()
        _close(outlets)
        raise
    say(_look_ahead(method, first.info))
    inbox = _Inbox(max(INBOX, (method.ahead() or 0) // 2))
    reader = _Reader(first, open_again, inbox, loop=loop, give_up=give_up, say=say)
    worker = _Worker(method, inbox, stage, say)
    begun = time.monotonic()
    show = _Show(info, outlets, stage, reader, worker)
    try:
        with _stopped_by_signals(stop):
            reader.start()
            worker.start()
            while worker.is_alive() and not stop.is_set():
                if seconds is not None and time.monotonic() - begun >= seconds:
                    break
                if not show.step(0.05):
                    break  # the window was closed
        reader.end()
        inbox.end()
        flushed = time.monotonic() + FLUSH
        while worker.is_alive() and time.monotonic() < flushed:
            show.rest(wait=0.05)
        worker.join(0.1)
        show.rest(wait=0.0)
    finally:
        reader.end()
        inbox.end()
        _close(outlets)
    result = Summary(
        filmed=reader.filmed,
        shown=show.shown,
        dropped=inbox.dropped,
        late=show.late + stage.dropped,
        failed=worker.lost,
        cards=show.cards,
        reconnections=reader.reconnections,
        restarts=worker.restarts,
        seconds=time.monotonic() - begun,
        delay=show.percentiles(),
    )
    if error := worker.error or reader.error:
        raise error
    return result


def _look_ahead(method: Anonymizer, info: VideoInfo) -> str:
    """How late the picture will be, in words."""
    name, ahead = method.name, method.ahead()
    size = f"{info.width}×{info.height} at {float(info.fps):.4g} frames a second"
    if ahead is None:
        return f"{size}; {name} does not say how far it looks ahead."
    if not ahead:
        return f"{size}; {name} looks at no later frame: the picture is late by the time that a frame takes."
    return (
        f"{size}; {name} looks {ahead} frames ahead: the picture is {1000 * ahead / float(info.fps):.0f} ms late, and later where "
        "frames are dropped."
    )


class _Inbox:
    """The newest frames that the method has not taken."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._frames: deque[Filmed] = deque()
        self._moved = threading.Condition()
        self._over = False
        self.dropped = 0

    def put(self, filmed: Filmed) -> None:
        with self._moved:
            self._frames.append(filmed)
            while len(self._frames) > self._room:
                self._frames.popleft()
                self.dropped += 1
            self._moved.notify_all()

    def wait(self) -> int | None:
        """The video that the next frame is of; None: there will be no more."""
        with self._moved:
            self._moved.wait_for(lambda: self._frames or self._over)
            return self._frames[0].video if self._frames else None

    def take(self, video: int) -> Filmed | None:
        """The next frame of a video; None: it is over."""
        with self._moved:
            self._moved.wait_for(lambda: self._frames or self._over)
            if not self._frames or self._frames[0].video != video:
                return None
            return self._frames.popleft()

    def end(self) -> None:
        with self._moved:
            self._over = True
            self._moved.notify_all()


class _Stage:
    """What the method gave out and was not shown yet."""

    def __init__(self, ahead: int | None) -> None:
        self._ahead = ahead
        self._frames: deque[Shown] = deque()
        self._most = (ahead or 0) + 64
        self._delays: deque[float] = deque(maxlen=max(8, min(256, 2 * ((ahead or 0) + 1))))
        self._moved = threading.Condition()
        self.failing = False
        self.dropped = 0

    def put(self, shown: Shown) -> None:
        with self._moved:
            self.failing = False
            self._delays.append(time.monotonic() - shown.at)
            self._frames.append(shown)
            if len(self._frames) > self._most:
                self._frames.popleft()
                self.dropped += 1
            self._moved.notify_all()

    def fail(self) -> None:
        """The method has failed: what it gave out before may be shown, but is not waited for."""
        with self._moved:
            self.failing = True
            self._moved.notify_all()

    @property
    def delay(self) -> float:
        """Seconds after which a frame is shown: none, where nothing is looked at ahead."""
        return max(self._delays, default=0.0) if self._ahead != 0 else 0.0

    def due(self, wait: float, *, now: bool = False) -> Shown | None:
        """The next frame, when it is time for it or `now`; after `wait` seconds None."""
        until = time.monotonic() + wait
        with self._moved:
            while True:
                left = until - time.monotonic()
                if self._frames:
                    early = 0.0 if now else self._frames[0].at + self.delay - time.monotonic()
                    if early <= 0:
                        return self._frames.popleft()
                    left = min(left, early)
                if time.monotonic() >= until:
                    return None
                self._moved.wait(max(0.001, left))


class _Reader(threading.Thread):
    """Reads the source, at a file's own speed, and looks for it again when it has vanished."""

    def __init__(
        self,
        first: VideoSource,
        again: Callable[[], VideoSource],
        inbox: _Inbox,
        *,
        loop: bool,
        give_up: float | None,
        say: Say,
    ) -> None:
        super().__init__(name="veil-live-reader", daemon=True)
        self._source: VideoSource | None = first
        self._again, self._inbox, self._loop, self._give_up, self._say = again, inbox, loop, give_up, say
        self._over = threading.Event()
        self.filmed = self.reconnections = self.videos = 0
        self.heard = time.monotonic()  # when the last frame came
        self.error: VeilError | None = None

    def run(self) -> None:
        try:
            while not self._over.is_set():
                source = self._source
                if source is None:
                    break
                why = self._read(source)
                self._source = None if self._over.is_set() else self._next(source, why)
        except Exception as error:  # whatever a driver raises: the picture ends, and is not shown otherwise
            self.error = VeilError(
                f"the source cannot be read any more ({type(error).__name__}): start again."
            )
        finally:
            self._inbox.end()

    def _read(self, source: VideoSource) -> VeilError | None:
        """Everything that a source sends; why it ended."""
        number, zero = self.videos, None
        self.videos += 1
        try:
            for window in source.windows():
                for frame, (pts, _) in zip(window.frames, window.times, strict=True):
                    if not source.live:
                        seconds = float(pts * source.info.time_base)
                        zero = time.monotonic() - seconds if zero is None else zero
                        self._over.wait(max(0.0, zero + seconds - time.monotonic()))
                    if self._over.is_set():
                        return None
                    self.heard = time.monotonic()
                    self.filmed += 1
                    self._inbox.put(Filmed(frame, self.heard, number))
        except VeilError as error:
            return error
        finally:
            source.close()
        return None

    def _next(self, source: VideoSource, why: VeilError | None) -> VideoSource | None:
        """The source again: of a file in a loop at once, of a vanished one when it is back; None: it is over."""
        if not source.live and not self._loop:
            self.error = why
            return None
        if not source.live:
            return self._again()
        self._say("the source is gone: looking for it.")
        pause, longest = BACK_OFF
        gone = time.monotonic()
        while not self._over.wait(pause):
            try:
                found = self._again()
            except VeilError as error:
                why = error
            else:
                self.reconnections += 1
                self._say("the source is back.")
                return found
            if self._give_up is not None and time.monotonic() - gone >= self._give_up:
                self.error = VeilError(f"the source did not come back within {self._give_up:g} s ({why}).")
                return None
            pause = min(longest, 2 * pause)
        return None

    def end(self) -> None:
        """Read no more; may be called from any thread."""
        self._over.set()
        if source := self._source:
            source.stop()


class _Worker(threading.Thread):
    """Puts frames through the method, and what comes out on the stage."""

    def __init__(self, method: Anonymizer, inbox: _Inbox, stage: _Stage, say: Say) -> None:
        super().__init__(name="veil-live-method", daemon=True)
        self._method, self._inbox, self._stage, self._say = method, inbox, stage, say
        self.restarts = self.lost = 0
        self.error: VeilError | None = None

    def run(self) -> None:
        failures = 0
        while (video := self._inbox.wait()) is not None:
            waiting: deque[float] = deque()
            given = 0
            try:
                for shown in self._veiled(video, waiting):
                    self._stage.put(shown)
                    given += 1
                if waiting:
                    raise RuntimeError(f"the method kept {len(waiting)} frames back")
                failures = 0
            except Exception as error:  # of any kind: what the method did not give out is not shown
                self.lost += len(waiting)
                self._stage.fail()
                failures = 1 if given else failures + 1
                # What a user has to mend, such as weights that are not here, is told at once.
                if failures >= RETRIES or (isinstance(error, VeilError) and not given):
                    self.error = _told(error)
                    break
                self.restarts += 1
                self._say(f"the method failed ({type(error).__name__}) and begins anew.")
        self._inbox.end()

    def _veiled(self, video: int, waiting: deque[float]) -> Iterator[Shown]:
        """What the method makes of one video, each frame with the time at which it was filmed."""
        shape: list[tuple[int, ...]] = []

        def windows() -> Iterator[Frames]:
            while (filmed := self._inbox.take(video)) is not None:
                shape[:] = [filmed.frame.shape]
                waiting.append(filmed.at)
                yield filmed.frame[None]

        for frames, *_ in self._method.stream(windows()):
            if len(frames) > len(waiting) or frames.shape[1:] != shape[0] or frames.dtype != np.uint8:
                raise RuntimeError(f"the method made frames {frames.shape} of {len(waiting)} of {shape}")
            for frame in frames:
                yield Shown(frame, waiting.popleft())


def _told(error: Exception) -> VeilError:
    if isinstance(error, VeilError):
        return error
    told = VeilError(
        f"the method failed {RETRIES} times on end ({type(error).__name__}: {error}); no raw frame was shown: choose another one."
    )
    told.__cause__ = error
    return told


class _Show:
    """Gives the outlets what is on the stage, when it is time, and cards when there is nothing."""

    def __init__(
        self, info: VideoInfo, outlets: list[Outlet], stage: _Stage, reader: _Reader, worker: _Worker
    ) -> None:
        self._info, self._outlets, self._stage = info, outlets, stage
        self._reader, self._worker = reader, worker
        self._zero = time.monotonic() - 1  # so that there is a time before all frames, for the first cards
        self._tick = -1  # of what was shown last
        self._carded = self._last = 0.0  # when a card, and a frame, was shown last
        self._delays: deque[float] = deque(maxlen=100_000)
        self.shown = self.late = self.cards = 0

    def step(self, wait: float) -> bool:
        """Show what is due within some seconds; False: nobody wants to see more."""
        shown = self._stage.due(wait)
        if shown is not None:
            return self._frame(shown)
        words = self._why_nothing()
        if words and time.monotonic() - self._carded >= REPEAT:
            return self._card(words)
        return all(outlet.idle() for outlet in self._outlets)

    def rest(self, wait: float) -> None:
        """Show what is left, without waiting until it is due."""
        while (shown := self._stage.due(wait, now=True)) is not None:
            self._frame(shown, rest=True)

    def _frame(self, shown: Shown, *, rest: bool = False) -> bool:
        now = time.monotonic()
        tick = self._ticks(shown.at)
        behind = now - shown.at - self._stage.delay
        # One that is behind is dropped only where others follow: a slow method shows what it has.
        if tick <= self._tick or (behind > LATE and self._stage.delay and not rest):
            self.late += 1
            return True
        self._tick = tick
        wanted = self._give(fitted(shown.frame, self._info.width, self._info.height), tick, card=False)
        self.shown += 1
        self._last = time.monotonic()
        self._delays.append(self._last - shown.at)
        return wanted

    def _card(self, words: str) -> bool:
        self._carded = time.monotonic()
        self._tick += 1
        if self.shown:
            self._tick = max(self._tick, self._ticks(self._carded - self._stage.delay))
        self.cards += 1
        return self._give(card(self._info.width, self._info.height, words), self._tick, card=True)

    def _give(self, frame: Frames, tick: int, *, card: bool) -> bool:
        wanted = [outlet.show(frame, tick, card=card) for outlet in self._outlets]  # all of them get it
        return all(wanted)

    def _why_nothing(self) -> str:
        """Why there is nothing to show, where that is worth a card."""
        if self._stage.failing:
            return "the method failed"
        now = time.monotonic()
        if now - self._reader.heard > STALL:
            return "no signal"
        if not self.shown:
            return "starting"
        return "waiting for the method" if now - self._last > STALL + 2 * self._stage.delay else ""

    def _ticks(self, at: float) -> int:
        return round((at - self._zero) * TICKS)

    def percentiles(self) -> tuple[float, float]:
        """Milliseconds from filmed to shown: the median, and the 95th percentile."""
        if not self._delays:
            return 0.0, 0.0
        middle, most = np.percentile(list(self._delays), [50, 95])
        return 1000 * float(middle), 1000 * float(most)


def card(width: int, height: int, words: str) -> Frames:
    """A picture that says why there is none ``(H, W, 3)``; nothing of any frame is in it."""
    picture = np.full((height, width, 3), 24, np.uint8)
    font, scale = cv2.FONT_HERSHEY_SIMPLEX, max(0.3, min(width / 480, height / 240))
    (across, down), _ = cv2.getTextSize(words, font, scale, 1)
    place = max(0, (width - across) // 2), min(height - 1, (height + down) // 2)
    cv2.putText(picture, words, place, font, scale, (200, 200, 200), max(1, round(scale)), cv2.LINE_AA)
    return picture


def fitted(frame: Frames, width: int, height: int) -> Frames:
    """A frame as large as all others: one of another size lies in the middle, on black."""
    if frame.shape[:2] == (height, width):
        return frame
    scale = min(width / frame.shape[1], height / frame.shape[0])
    w, h = max(1, round(frame.shape[1] * scale)), max(1, round(frame.shape[0] * scale))
    out = np.zeros((height, width, 3), np.uint8)
    y, x = (height - h) // 2, (width - w) // 2
    out[y : y + h, x : x + w] = cv2.resize(frame, (w, h), interpolation=cv2.INTER_AREA)
    return out


def _close(outlets: Sequence[Outlet]) -> None:
    """Close all, also where one fails; the first failure is told."""
    failed: list[Exception] = []
    for outlet in outlets:
        try:
            outlet.close()
        except Exception as error:
            failed.append(error)
    if failed:
        raise failed[0]


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Ctrl-C, or the end of the service, ends the picture cleanly; a second one breaks off."""
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
