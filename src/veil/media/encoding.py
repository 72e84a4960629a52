"""Video files that libav encodes. Encoding runs in a thread of its own."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

import av
import cv2
import numpy as np
from av.audio.stream import AudioStream
from av.codec.context import Flags
from av.error import ArgumentError, FFmpegError
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from veil.core import Frames, VeilError
from veil.media.channel import Channel
from veil.media.color import LUMA, rgb_to_yuv
from veil.media.decoding import LibavSource
from veil.media.draft import Draft
from veil.media.libav import writing
from veil.media.timestamps import TimestampClock
from veil.media.video import (
    BT709,
    CONTAINERS,
    Codec,
    FrameTime,
    FrameWindow,
    VideoInfo,
    VideoSource,
    check_frames,
)

_ENCODERS = {"h264": "libx264", "h265": "libx265", "ffv1": "ffv1"}
_CRF = {"h264": 23, "h265": 28}


class LibavSink:
    """A video file that libav writes."""

    def __init__(
        self,
        path: Path,
        info: VideoInfo,
        codec: Codec,
        quality: int | None,
        overwrite: bool,
        audio_from: VideoSource | None,
    ) -> None:
        self._path, self._info, self._lossless = path, info, codec == "ffv1"
        even = not self._lossless  # yuv420p has one colour for two by two pixels
        width, height = self.size = info.width + (info.width & even), info.height + (info.height & even)
        self._yuv, self._chroma = (
            np.empty((height, width, 3), np.uint8),
            np.empty((2, height, width), np.uint8),
        )
        self._written = 0
        self._channel: Channel[FrameWindow] = Channel()
        self._source = audio_from if isinstance(audio_from, LibavSource) else None
        self._audio: dict[int, tuple[AudioStream, TimestampClock]] = {}  # by their index in the source
        self._draft = Draft(path, overwrite=overwrite)
        try:
            with writing(self._draft):
                self._open(codec, quality)
        except BaseException:
            self._draft.discard()
            raise
        self._thread = threading.Thread(target=self._encode_windows, name="veil-encode", daemon=True)
        self._thread.start()

    def _open(self, codec: Codec, quality: int | None) -> None:
        info, form = self._info, CONTAINERS[self._path.suffix.lower()]
        options = {"fflags": "+bitexact"}  # no name or version of a program
        if form != "matroska":
            scale = info.time_base.denominator * math.ceil(90_000 / info.time_base.denominator)
            options |= {"movflags": "+faststart", "movie_timescale": str(scale)}  # by default a millisecond
        self._container = av.open(f"file:{self._draft.path}", "w", format=form, container_options=options)
        stream = self._container.add_stream(_ENCODERS[codec], rate=info.fps)
        assert isinstance(stream, VideoStream)
        self._stream, coder = stream, stream.codec_context
        coder.width, coder.height = self.size
        coder.time_base = stream.time_base = info.time_base
        coder.sample_aspect_ratio = info.aspect
        coder.flags |= Flags.frame_duration
        if self._lossless:
            coder.pix_fmt, coder.colorspace, coder.color_range = "bgr0", 0, 2
            coder.options = {"level": "1"} if min(self.size) < 16 else {}  # later levels cut it into slices
        else:
            color = info.color if info.color.matrix in LUMA else BT709
            coder.pix_fmt, coder.color_range = "yuv420p", 1
            coder.colorspace, coder.color_primaries, coder.color_trc = color
            coder.options = {"preset": "veryfast", "crf": str(_CRF[codec] if quality is None else quality)}
            self._matrix = rgb_to_yuv(color.matrix)
        if codec == "h265":
            coder.options |= {"x265-params": "log-level=none:info=0"}
            if form != "matroska":
                coder.codec_tag = "hvc1"  # Apple's players accept no other
        try:
            coder.open()
        except FFmpegError as error:
            size = f"{self.size[0]} × {self.size[1]}"
            raise VeilError(
                f"{codec} cannot encode {size} at {info.fps} fps: use another codec.", code="not-encodable"
            ) from error
        for sound in self._source.audio_streams if self._source else ():
            self._add_audio(sound, form)
        try:
            self._container.start_encoding()
        except ArgumentError as error:
            if not self._audio:
                raise
            names = {copy.codec_context.codec.canonical_name for copy, _ in self._audio.values()}
            raise self._audio_error(" or ".join(sorted(names))) from error

    def _add_audio(self, sound: AudioStream, form: str) -> None:
        name = sound.codec_context.codec.canonical_name if sound.codec_context else "unknown"
        if name == "unknown" or (form == "mp4" and name.startswith("pcm_")):  # allowed now, but not played
            raise self._audio_error(name)
        try:
            copy = self._container.add_stream_from_template(sound)
        except ValueError as error:
            raise self._audio_error(name) from error
        self._audio[sound.index] = copy, TimestampClock(1 / (sound.time_base or Fraction(1, 1000)))

    def _audio_error(self, codec: str) -> VeilError:
        other = "" if self._path.suffix.lower() == ".mkv" else " let its name end in .mkv, or"
        return VeilError(
            f"{self._path} cannot hold {codec} sound:{other} drop the sound.", code="audio-not-supported"
        )

    def write(self, frames: Frames, times: Sequence[FrameTime]) -> None:
        """Add frames, as `VideoSink` states."""
        check_frames(self._info, frames, times)
        if not self._channel.put(FrameWindow(frames, list(times))):
            raise self._channel.error or RuntimeError("this sink is closed")
        self._written += len(frames)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: Any) -> None:
        try:
            if failure[1] is None:
                self._channel.end()
                self._thread.join()
                if self._channel.error is not None:
                    raise self._channel.error
                with writing(self._draft):
                    self._verify()
                    self._draft.publish()
        finally:
            self._channel.end(RuntimeError("this sink is closed"), now=True)
            self._thread.join()
            self._draft.discard()  # first, so that libav does not finish it
            with suppress(FFmpegError, OSError):
                self._container.close()

    def _encode_windows(self) -> None:
        """What the thread does: encode the windows of the channel, then finish the file."""
        try:
            with writing(self._draft):
                while (window := self._channel.get()) is not None:
                    for pixels, time in zip(window.frames, window.times, strict=True):
                        frame = self._to_encoder(pixels)
                        frame.pts, frame.duration = time
                        frame.time_base = self._info.time_base
                        self._container.mux(self._stream.encode(frame))
                    self._copy_audio()
                self._container.mux(self._stream.encode(None))
                self._copy_audio()
                self._container.close()
        except BaseException as error:
            self._channel.end(error, now=True)

    def _copy_audio(self) -> None:
        for packet in self._source.take_audio() if self._source else ():
            copy, clock = self._audio[packet.stream_index]
            tick = clock.tick(packet.dts, packet.duration or 1)
            packet.pts = tick if packet.pts is None or packet.dts is None else packet.pts + tick - packet.dts
            packet.dts = tick
            packet.stream = copy
            self._container.mux(packet)

    def _to_encoder(self, pixels: Frames) -> VideoFrame:
        """Pixels ``(H, W, 3)`` as the encoder takes them; OpenCV is much faster at it than libswscale."""
        width, height = self.size
        frame = VideoFrame(width, height, "bgr0" if self._lossless else "yuv420p")
        rows = [np.frombuffer(memoryview(p), np.uint8).reshape(p.height, p.line_size) for p in frame.planes]
        if self._lossless:
            planes = [rows[0][:, : width * 4].reshape(height, width, 4)]
            made = [cv2.cvtColor(pixels, cv2.COLOR_RGB2BGRA, planes[0])]
        else:
            if pixels.shape[:2] != (height, width):
                padding = (0, height - pixels.shape[0]), (0, width - pixels.shape[1]), (0, 0)
                pixels = np.pad(pixels, padding, mode="edge")
            half = width // 2, height // 2
            planes = [rows[0][:, :width], rows[1][:, : half[0]], rows[2][:, : half[0]]]
            yuv = cv2.transform(pixels, self._matrix, self._yuv)
            luma, *colours = cv2.split(yuv, [planes[0], *self._chroma])
            means = zip(colours, planes[1:], strict=True)  # of two by two pixels
            made = [luma, *(cv2.resize(c, half, plane, interpolation=cv2.INTER_AREA) for c, plane in means)]
        for plane, part in zip(planes, made, strict=True):
            if part is not plane:  # OpenCV did not write into the given memory, which may hold old pixels
                plane[...] = part
        return frame

    def _verify(self) -> None:
        """Read the finished file back: it must hold every frame that was written."""
        if not self._written:
            raise VeilError(f"{self._path} would hold no frame: nothing was written.", code="no-frame")
        with av.open(f"file:{self._draft.path}") as container:
            found = sum(packet.size > 0 for packet in container.demux(video=0))
        if found != self._written:
            raise VeilError(
                f"{self._path} would hold {found} of {self._written} frames: nothing was written.",
                code="output-incomplete",
            )
