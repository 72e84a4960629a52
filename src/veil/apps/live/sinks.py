"""What a live video is shown by, and two simple sinks: a video file and an RTSP server."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import av
import numpy as np
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from veil.core import Frames, VeilError
from veil.media.sinks import open_sink
from veil.media.video import FrameTime, VideoInfo, VideoSink

TICKS = 90_000  # in a second
PORT = 8090  # of HTTP
TIMEOUT = 10.0  # seconds that a viewer or a server may be silent


class LiveSink(Protocol):
    """Shows anonymized frames and placeholders, one after the other; it may leave frames out, but must not block for long."""

    def show(self, frame: Frames, tick: int, *, placeholder: bool) -> bool:
        """Show a frame ``(H, W, 3)`` at a time in ticks, `TICKS` a second; False: no more is wanted."""
        ...

    def poll(self) -> bool:
        """Called while there is nothing to show; False: no more is wanted."""
        ...

    def describe(self) -> str:
        """Where to see it, for the screen; empty where that is clear."""
        ...

    def close(self) -> None:
        """Finish what was begun."""
        ...


class FileSink:
    """A video file, which gets its name when the video ends and holds everything that was shown until then."""

    def __init__(self, path: Path, info: VideoInfo, *, overwrite: bool) -> None:
        self._step = max(1, round(TICKS / info.fps))
        self._sink: VideoSink = open_sink(path, info, overwrite=overwrite)
        self._sink.__enter__()
        self._held: tuple[Frames, int] | None = None  # its duration is known when the next frame comes
        self._zero: int | None = None

    def show(self, frame: Frames, tick: int, *, placeholder: bool) -> bool:
        """See `LiveSink`. A file begins with a frame, not with a placeholder."""
        if placeholder and self._zero is None:
            return True
        self._zero = tick if self._zero is None else self._zero
        self._write(tick)
        self._held = frame, tick
        return True

    def _write(self, until: int) -> None:
        if self._held is not None and self._zero is not None:
            frame, tick = self._held
            try:
                self._sink.write(frame[None], [FrameTime(tick - self._zero, max(1, until - tick))])
            except BaseException as error:
                self._held = None
                self._sink.__exit__(type(error), error, None)
                raise

    def poll(self) -> bool:
        """See `LiveSink`."""
        return True

    def describe(self) -> str:
        """See `LiveSink`."""
        return ""

    def close(self) -> None:
        """See `LiveSink`."""
        if self._held is None:  # nothing was shown: no file is written
            self._sink.__exit__(VeilError, VeilError("nothing was shown"), None)
            return
        self._write(self._held[1] + self._step)
        self._held = None
        self._sink.__exit__(None, None, None)


class RTSPSink:
    """H.264 to an RTSP server, which shows it to others; Veil is not a server itself."""

    def __init__(self, url: str, info: VideoInfo) -> None:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]  # without a password
        self._name = parts._replace(netloc=host, query="").geturl()
        self._size = info.width - info.width % 2, info.height - info.height % 2
        if "rtsp" not in av.formats_available or "libx264" not in av.codecs_available:
            raise VeilError(
                f"this build of PyAV cannot send RTSP: use --to http://127.0.0.1:{PORT}.",
                code="rtsp-unavailable",
            )
        options = {"rtsp_transport": "tcp", "timeout": str(round(TIMEOUT * 1e6))}
        try:
            self._container = av.open(url, "w", format="rtsp", options=options, timeout=TIMEOUT)
            stream = self._container.add_stream("libx264", rate=info.fps)
            assert isinstance(stream, VideoStream)
            self._stream, encoder = stream, stream.codec_context
            encoder.width, encoder.height = self._size
            encoder.pix_fmt = "yuv420p"
            encoder.time_base = stream.time_base = Fraction(1, TICKS)
            encoder.gop_size = max(1, round(2 * info.fps))
            encoder.options = {"preset": "veryfast", "tune": "zerolatency"}
            self._container.start_encoding()
        except (FFmpegError, OSError) as error:
            raise VeilError(
                f"{self._name} accepts no video ({error.strerror}): start an RTSP server that allows publishing there.",
                code="rtsp-refused",
            ) from error

    def show(self, frame: Frames, tick: int, *, placeholder: bool) -> bool:
        """See `LiveSink`."""
        width, height = self._size
        picture = VideoFrame.from_ndarray(np.ascontiguousarray(frame[:height, :width]), "rgb24")
        picture.pts, picture.time_base = tick, Fraction(1, TICKS)
        try:
            self._container.mux(self._stream.encode(picture.reformat(format="yuv420p")))
        except (FFmpegError, OSError) as error:
            raise VeilError(
                f"{self._name} accepts no more video ({error.strerror}): start again.", code="rtsp-gone"
            ) from error
        return True

    def poll(self) -> bool:
        """See `LiveSink`."""
        return True

    def describe(self) -> str:
        """See `LiveSink`."""
        return f"sent to {self._name}, an RTSP server."

    def close(self) -> None:
        """See `LiveSink`."""
        with suppress(FFmpegError, OSError):
            self._container.mux(self._stream.encode(None))
        with suppress(FFmpegError, OSError):
            self._container.close()
