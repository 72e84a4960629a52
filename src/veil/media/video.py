"""Video and stills in and out: uint8 RGB frames with exact times.

*source*   a file, a still, a camera or a stream, read as windows of a few consecutive frames.
*sink*     one output file, which takes its name only when it is whole.

Decoding and encoding run in threads of their own, joined to the caller by short belts: memory does not grow
with the length of a video, and libav, which lets go of the interpreter while it works, overlaps with whatever
lies between. Times are whole ticks of ``VideoInfo.time_base``, never floats, so that odd rates stay exact.
"""

from __future__ import annotations

import math
import re
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar
from urllib.parse import unquote, urlsplit

import av
import av.logging
import cv2
import numpy as np
from av.audio.stream import AudioStream
from av.codec.context import Flags, ThreadType
from av.error import ArgumentError, FFmpegError
from av.packet import Packet
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream
from PIL import Image, ImageOps

from veil.core import Frames, VeilError, io_errors
from veil.media.draft import Draft

# fmt: off
VIDEO_SUFFIXES = frozenset([
    ".3gp", ".asf", ".avi", ".flv", ".gif", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts",
    ".mxf", ".ogv", ".ts", ".vob", ".webm", ".wmv",
])
# fmt: on
IMAGE_SUFFIXES = frozenset([".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"])

Codec = Literal["h264", "h265", "ffv1"]
_FORMATS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}
OUTPUT_SUFFIXES: dict[Codec, tuple[str, ...]] = {
    "h264": tuple(_FORMATS),
    "h265": tuple(_FORMATS),
    "ffv1": (".mkv",),
}

_WINDOW_FRAMES, _WINDOW_BYTES = 16, 24 << 20  # from 32 MB on, malloc asks the system for every window anew
_SOUND_BYTES = 64 << 20
_PATIENCE = 10.0  # seconds that a camera or a stream may be silent
_ENCODERS = {"h264": "libx264", "h265": "libx265", "ffv1": "ffv1"}
_CRF = {"h264": 23, "h265": 28}
_CAMERAS = {"darwin": ("avfoundation", "{}"), "win32": ("dshow", "video={}")}
# One packet is one frame, so a packet that became no frame is a lost frame. In other codecs a frame may need
# two packets (fields) and a packet may show nothing (VP8's hidden frames): there, only errors can be counted.
_WHOLE = {"h264", "hevc", "vp9", "av1"}
# The weights of red and blue in luma, by the number of the matrix in ITU-T H.273; 2 is "unspecified".
_LUMA = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 7: (0.212, 0.087), 9: (0.2627, 0.0593)}
_LUMA |= dict.fromkeys((2, 5, 6), (0.299, 0.114))

_T = TypeVar("_T")

# Decoder, encoder and detector share the cores already; OpenCV's waiting threads would only spin.
cv2.setNumThreads(1)
av.logging.set_level(None)  # libav's own words name files; what a user needs to know is in the VeilError


class Color(NamedTuple):
    """What the numbers in a video mean as light, numbered as in ITU-T H.273; 2 is "unspecified"."""

    matrix: int = 1
    primaries: int = 1
    transfer: int = 1


_BT709 = Color()


@dataclass(frozen=True)
class VideoInfo:
    """What is known of a video before its frames are: all of it as displayed, after rotation."""

    width: int
    height: int
    fps: Fraction  # the mean rate; the exact times are each frame's
    frames: int | None = None  # None: the container does not say
    time_base: Fraction = Fraction(1, 90_000)  # seconds in a tick
    aspect: Fraction = Fraction(1)  # of one pixel: width by height
    color: Color = _BT709


class Time(NamedTuple):
    """When a frame is shown and for how long, in ticks of ``VideoInfo.time_base``; ``pts`` only grows."""

    pts: int
    duration: int


class Window(NamedTuple):
    """A few consecutive frames, and when each is shown."""

    frames: Frames  # (T, H, W, 3)
    times: list[Time]


class VideoSource(Protocol):
    """A video to read, once."""

    info: VideoInfo
    live: bool  # a camera or a stream: it ends when it is stopped, and gaps are no damage
    lost: int  # frames that could not be decoded so far

    def windows(self) -> Iterator[Window]:
        """Every frame once, in order; a damaged video ends in a VeilError, unless it is salvaged or live."""
        ...

    def stop(self) -> None:
        """Make `windows` end soon; may be called from any thread, also while a live source is silent."""
        ...

    def close(self) -> None:
        """Let go of the file or device."""
        ...


class VideoSink(Protocol):
    """A context manager: the whole file on success, nothing on any error."""

    size: tuple[int, int]  # width and height of what is written

    def write(self, frames: Frames, times: Sequence[Time]) -> None:
        """Add frames ``(T, H, W, 3)``; they belong to the sink from now on and must not be changed."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *failure: Any) -> None: ...


def is_image(path: str | Path) -> bool:
    """Whether the name is that of a still."""
    return Path(path).suffix.lower() in IMAGE_SUFFIXES


def is_video(path: str | Path) -> bool:
    """Whether the name is that of a video."""
    return Path(path).suffix.lower() in VIDEO_SUFFIXES


def open_source(spec: str | Path, *, salvage: bool = False, audio: bool = False) -> VideoSource:
    """Open a video or a still by its path, a camera by its number, or a stream by its URL.

    ``salvage`` goes on past damage, which else is a VeilError; ``audio`` keeps the sound for `open_sink`.
    """
    text = str(spec)
    if text.startswith("file://"):
        text = unquote(urlsplit(text).path)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
        name = re.sub(r"//[^/@]*@", "//", text).split("?")[0]  # messages hold no password
        return _VideoSource(name, text, live=True, audio=audio)
    if text.isdecimal() and not Path(text).exists():
        driver, device = _CAMERAS.get(sys.platform, ("v4l2", "/dev/video{}"))
        return _VideoSource(f"camera {text}", device.format(text), driver=driver, live=True)
    path = Path(text)
    with _reading(text):
        if path.is_dir():
            raise VeilError(f"{path} is a folder, not a video; name a file in it")
        with path.open("rb") as file:  # libav would call a forbidden file a strange one
            if not file.read(1):
                raise VeilError(f"{path} is empty (0 bytes); copy or record it again")
    return _StillSource(path) if is_image(path) else _VideoSource(text, "", salvage=salvage, audio=audio)


def open_sink(
    path: Path,
    info: VideoInfo,
    *,
    codec: Codec = "h264",
    quality: int | None = None,
    overwrite: bool = False,
    audio_from: VideoSource | None = None,
) -> VideoSink:
    """Open a file for frames of ``info``'s size and times; a name that ends as a still's makes a still.

    ``quality`` is the encoder's crf, less is better: by default 23 for h264, 28 for h265; stills have none.
    ``audio_from`` is a source, opened with ``audio=True``, whose sound is copied; nothing else of it ever is.
    """
    path = Path(path)
    if is_image(path):
        return _StillSink(path, info, overwrite=overwrite)
    suffixes = OUTPUT_SUFFIXES[codec]
    if path.suffix.lower() not in suffixes:
        raise VeilError(f"{path} cannot hold {codec} video; let its name end in {' or '.join(suffixes)}")
    if quality is not None and codec == "ffv1":
        raise VeilError(f"quality {quality} means nothing to ffv1, which loses nothing; leave it out")
    if quality is not None and not 0 <= quality <= 51:
        raise VeilError(f"quality {quality} is out of range; choose from 0 (best) to 51 (smallest)")
    return _VideoSink(path, info, codec, quality, overwrite, audio_from)


class _Belt(Generic[_T]):
    """Carries things from one thread to another; either side may end it, at once or with an error."""

    def __init__(self) -> None:
        self._things: deque[_T] = deque()
        self.ended = False
        self._moved = threading.Condition()
        self.error: BaseException | None = None

    def put(self, thing: _T) -> bool:
        """Wait for room and put the thing on; False once nobody wants it."""
        with self._moved:
            self._moved.wait_for(lambda: self.ended or not self._things)
            if not self.ended:
                self._things.append(thing)
                self._moved.notify_all()
            return not self.ended

    def get(self) -> _T | None:
        """Wait for the next thing; at the end None, or the error that ended the belt."""
        with self._moved:
            self._moved.wait_for(lambda: self.ended or self._things)
            if self._things:
                self._moved.notify_all()
                return self._things.popleft()
            if self.error is not None:
                raise self.error
            return None

    def end(self, error: BaseException | None = None, *, now: bool = False) -> None:
        """Put no more, and with ``now`` throw away what lies on the belt; the first error stays."""
        with self._moved:
            if now:
                self._things.clear()
            self.ended = True
            self.error = self.error or error
            self._moved.notify_all()


class _Clock:
    """Makes strictly increasing whole ticks of the times that a container states, or fails to state."""

    def __init__(self, second: Fraction) -> None:
        self._second = second  # in ticks
        self._shift: Fraction | int = 0
        self._time: Fraction | int = 0
        self._last: int | None = None

    def tick(self, stated: Fraction | int | None, step: Fraction | int) -> int:
        if self._last is None:
            self._time = stated or 0
        elif stated is None:
            self._time += step
        elif stated + self._shift < self._last - self._second:  # began anew: go on where it broke off
            self._shift = self._time + step - stated
            self._time += step
        else:
            self._time = stated + self._shift
        tick = round(self._time)
        if self._last is not None and tick <= self._last:
            tick = self._time = self._last + 1
        self._last = tick
        return tick


class _VideoSource:
    """A video that libav reads. The first frame is decoded at once: it alone shows size, turn and colour."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        driver: str | None = None,
        live: bool = False,
        salvage: bool = False,
        audio: bool = False,
    ) -> None:
        self.live, self.lost = live, 0
        self._name, self._strict = name, not (live or salvage)
        with _reading(name, live=live):
            self._container = av.open(
                url or f"file:{name}",
                format=driver,
                metadata_errors="ignore",
                timeout=_PATIENCE if live else None,
            )
        videos = [s for s in self._container.streams.video if not s.disposition & Disposition.attached_pic]
        if not videos or self._container.format.name in ("concat", "tty"):
            raise VeilError(f"{name} holds no video; check that it is the right file")
        self._stream = min(videos, key=lambda stream: not stream.disposition & Disposition.default)
        self._coder = self._stream.codec_context
        if self._coder is None:
            raise VeilError(f"{name} is coded in a way that is not known here; convert it to H.264 first")
        self._whole = self._coder.codec.canonical_name in _WHOLE and self._coder.field_order <= 1
        # Decoding frames side by side is quicker, but a broken frame near the end takes its neighbours along.
        # And it gives each out later, which a live picture has no time for.
        alone = salvage or live or not self._whole
        self._coder.thread_type = ThreadType.SLICE if alone else ThreadType.AUTO
        self._coder.copy_opaque = True
        self._painter = VideoReformatter()
        self._belt: _Belt[Window] = _Belt()
        self._thread: threading.Thread | None = None
        self.sounds = list(self._container.streams.audio) if audio else []
        self._sound: deque[Packet] = deque()
        self._sound_bytes, self._sound_lock = 0, threading.Lock()
        # What is stored or shown before the first key frame leans on what was cut off: it is not damaged.
        self._begun, self._key = False, 0
        self._packets = self._owed = self._paid = self._errors = self._shown = 0
        self._ends: dict[int, int] = {}  # of the packets of each stream, in its own ticks
        # AVI counts empty frames too, which its index leaves out; an index of one was cut off.
        indexed = len(self._stream.index_entries) if self._container.format.name == "avi" else 0
        self._indexed = indexed if indexed > 1 else 0
        self._frames = self._decode()
        with _reading(name, live=live):
            first = next(self._frames, None)
        if first is None:
            raise VeilError(f"{name} holds no frame that can be decoded; check that it plays in a player")
        self._frames = chain([first], self._frames)
        self._coded, self._turn = (first.width, first.height), _turn(first)
        self._base = self._stream.time_base or Fraction(1, 90_000)
        self._zero = first.pts or 0  # what the output calls zero, in ticks of the stream
        if self._container.start_time is not None and not live:
            start = Fraction(self._container.start_time, av.time_base)
            self._zero = min(self._zero, round(start / self._base))
        self.info = self._learn(first)
        self._ticks = self._base / self.info.time_base
        self._step = 1 / (self.info.fps * self.info.time_base)
        self._clock = _Clock(1 / self.info.time_base)

    def _learn(self, first: VideoFrame) -> VideoInfo:
        stream, (width, height) = self._stream, self._coded
        fps, guess = stream.average_rate, stream.guessed_rate
        if guess and (not fps or abs(guess / fps - 1) < Fraction(1, 1000)):
            fps = guess  # ticks of a millisecond are too coarse to find 30000/1001 by averaging
        fps = fps or Fraction(25)
        # Ten ticks a frame or more, so that there is room between frames; mp4 wants no billions in a second.
        base = max(self._base, Fraction(1, 10_000_000)) / max(1, math.ceil(10 * self._base * fps))
        aspect = stream.sample_aspect_ratio or Fraction(1)
        if self._turn[0]:
            width, height, aspect = height, width, 1 / aspect
        color = _BT709
        if not (first.format.is_rgb or first.format.has_palette):
            tags = first.colorspace, first.color_primaries, first.color_trc
            color = Color(*(2 if tag in (0, 3) else tag for tag in tags))
        frames = self._indexed or stream.frames
        if (
            "mp4" in self._container.format.name
        ):  # an edit list hides some; in fragments, the first states its own
            hidden = sum(entry.is_discard for entry in stream.index_entries)
            frames = frames - hidden if frames == len(stream.index_entries) else 0
        return VideoInfo(width, height, fps, frames or None, base, aspect, color)

    def windows(self) -> Iterator[Window]:
        if self._thread is not None:
            raise RuntimeError("a source is read once; open it again")
        self._thread = threading.Thread(target=self._fill, name="veil-decode", daemon=True)
        self._thread.start()
        try:
            while (window := self._belt.get()) is not None:
                yield window
        finally:
            self._end()

    def _end(self) -> None:
        self._belt.end(now=True)
        if self._thread is not None:
            self._thread.join(0.5 if self.live else None)  # a silent source's thread ends with its patience

    def stop(self) -> None:
        self._belt.end()

    def close(self) -> None:
        self._end()
        if self._thread is None or not self._thread.is_alive():
            self._container.close()

    def take_sound(self) -> list[Packet]:
        """The sound met since the last call, with times counted from the video's zero."""
        with self._sound_lock:
            packets = list(self._sound)
            self._sound.clear()
            self._sound_bytes = 0
        for packet in packets:
            shift = round(self._zero * self._base / (packet.time_base or self._base))
            packet.pts = None if packet.pts is None else packet.pts - shift
            packet.dts = None if packet.dts is None else packet.dts - shift
        return packets

    def _fill(self) -> None:
        """What the thread does: windows onto the belt, then the verdict."""
        try:
            with _reading(self._name, live=self.live):
                for window in self._collect():
                    if not self._belt.put(window):
                        return
            if self.lost and self._strict:
                every = self._shown + self.lost
                raise VeilError(
                    f"{self._name}: {self.lost} of {every} frames could not be decoded; copy or record it"
                    " again, or pass --salvage to anonymize the rest"
                )
            self._belt.end()
        except BaseException as error:
            self._belt.end(error)

    def _collect(self) -> Iterator[Window]:
        shape = self.info.height, self.info.width, 3
        length = 1 if self.live else min(_WINDOW_FRAMES, max(1, _WINDOW_BYTES // math.prod(shape)))
        frames, times = np.empty((length, *shape), np.uint8), []
        for frame in self._frames:
            if (frame.width, frame.height) != self._coded:
                before, after = "{} × {}".format(*self._coded), f"{frame.width} × {frame.height}"
                raise VeilError(f"{self._name} changes its size from {before} to {after}; cut it there first")
            if self.lost and self._strict:
                continue  # go on only to say how much is lost
            stated = None if frame.pts is None else (frame.pts - self._zero) * self._ticks
            pts = self._clock.tick(stated, self._step)
            if times:  # what containers say of durations is in the order of decoding, and often wrong
                times[-1] = Time(times[-1].pts, pts - times[-1].pts)
            if len(times) == length:
                yield Window(frames, times)
                frames, times = np.empty_like(frames), []
            frames[len(times)] = self._paint(frame)
            times.append(Time(pts, max(1, round(frame.duration * self._ticks or self._step))))
            if self.live:  # it is not kept until the next one comes, which may be never
                yield Window(frames, times)
                frames, times = np.empty_like(frames), []
        if times:
            if "mp4" in self._container.format.name and self._stream.duration and not self.lost:
                end = (self._stream.start_time or 0) + self._stream.duration - self._zero
                left = round(end * self._ticks) - times[-1].pts
                if abs(left - times[-1].duration) * self.info.time_base > Fraction(1, 1000):  # its rounding
                    times[-1] = Time(times[-1].pts, max(1, left))
            yield Window(frames[: len(times)], times)

    def _decode(self) -> Iterator[VideoFrame]:
        """Every frame that can be decoded, in order; the others are counted in ``lost``."""
        for packet in self._demux():
            for frame in self._frames_of(packet):
                self._shown += 1
                yield frame
            self.lost = self._errors
        self.lost = max(self._errors, self._owed - self._paid if self._whole else 0) + self._missing()

    def _missing(self) -> int:
        """How many frames the container promised and did not hold."""
        if "mp4" in self._container.format.name:
            return max(0, len(self._stream.index_entries) - self._packets)  # the index knows of edit lists
        if "matroska" in self._container.format.name and self._container.duration:  # promises a time only
            ends = [end * (self._container.streams[i].time_base or 0) for i, end in self._ends.items()]
            gap = Fraction(self._container.duration, av.time_base) - max(ends, default=0)
            return round(gap * (self._stream.average_rate or 25)) if gap > 1 else 0
        return max(0, (self._indexed or self._stream.frames) - self._packets)

    def _demux(self) -> Iterator[Packet | None]:
        """The packets of the video, then None; those of the sound are set aside."""
        sounds = {stream.index for stream in self.sounds}
        try:
            for packet in self._container.demux():
                if self._belt.ended:
                    return
                if not packet.size and packet.dts is None:
                    continue  # libav has reached the end of this stream
                index, time = packet.stream_index, packet.dts if packet.pts is None else packet.pts
                self._ends[index] = max(self._ends.get(index, 0), (time or 0) + (packet.duration or 0))
                if index == self._stream.index:
                    self._packets += 1
                    yield packet
                elif index in sounds and packet.size and not (packet.is_discard or packet.is_corrupt):
                    self._keep(packet)
        except IndexError:
            pass  # at the end, PyAV stumbles over streams that appeared on the way
        except (FFmpegError, OSError):
            if self.live and not self._shown:
                raise
            self._errors += 1
        yield None

    def _keep(self, packet: Packet) -> None:
        with self._sound_lock:
            self._sound.append(packet)
            self._sound_bytes += packet.size
            if self._sound_bytes > _SOUND_BYTES:
                raise VeilError(f"{self._name} stores its sound too far from its picture; drop the sound")

    def _frames_of(self, packet: Packet | None) -> Iterator[VideoFrame]:
        """Decode one packet, or with None what the decoder still holds."""
        if packet is not None:
            if not packet.size:
                return  # a frame that repeats the last; to the decoder it would mean the end
            if packet.is_keyframe and not self._begun:
                self._begun, self._key = True, packet.pts or 0
            self._owed += not packet.is_discard and self._counts(packet.pts)
            packet.opaque = packet.is_corrupt or None
        try:
            frames = self._coder.decode(packet)
        except FFmpegError:
            self._errors += self._begun
            return
        for frame in frames:
            if frame.is_corrupt or frame.opaque:
                self._errors += self._begun and (frame.pts is None or self._counts(frame.pts))
                continue
            self._whole = self._whole and not frame.interlaced_frame
            self._paid += self._counts(frame.pts)
            self._begun = True
            yield frame

    def _counts(self, pts: int | None) -> bool:
        return self._begun and pts is not None and pts >= self._key

    def _paint(self, frame: VideoFrame) -> Frames:
        """The frame as displayed, RGB ``(H, W, 3)``; what is transparent lies on black."""
        clear = frame.format.has_palette or any(part.is_alpha for part in frame.format.components)
        painted = self._painter.reformat(frame, format="rgba" if clear else "rgb24", threads=1)
        plane, depth = painted.planes[0], 4 if clear else 3
        shape, strides = (painted.height, painted.width, depth), (plane.line_size, depth, 1)
        pixels = np.ndarray(
            shape, np.uint8, memoryview(plane), strides=strides
        )  # a view: it is copied once, by the caller
        if clear:
            pixels = _on_black(pixels)
        across, mirrored, upended = self._turn
        if across:
            pixels = np.asarray(cv2.transpose(pixels), np.uint8)
        if mirrored or upended:
            pixels = np.asarray(cv2.flip(pixels, -1 if mirrored and upended else int(mirrored)), np.uint8)
        return pixels


class _VideoSink:
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
        self._belt: _Belt[Window] = _Belt()
        self._source = audio_from if isinstance(audio_from, _VideoSource) else None
        self._sounds: dict[int, tuple[AudioStream, _Clock]] = {}  # by their index in the source
        self._draft = Draft(path, overwrite=overwrite)
        try:
            with _writing(self._draft):
                self._open(codec, quality)
        except BaseException:
            self._draft.discard()
            raise
        self._thread = threading.Thread(target=self._drain, name="veil-encode", daemon=True)
        self._thread.start()

    def _open(self, codec: Codec, quality: int | None) -> None:
        info, form = self._info, _FORMATS[self._path.suffix.lower()]
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
            color = info.color if info.color.matrix in _LUMA else _BT709
            coder.pix_fmt, coder.color_range = "yuv420p", 1
            coder.colorspace, coder.color_primaries, coder.color_trc = color
            coder.options = {"preset": "veryfast", "crf": str(_CRF[codec] if quality is None else quality)}
            self._matrix = _to_yuv(color.matrix)
        if codec == "h265":
            coder.options |= {"x265-params": "log-level=none:info=0"}
            if form != "matroska":
                coder.codec_tag = "hvc1"  # Apple's players know no other
        try:
            coder.open()
        except FFmpegError as error:
            size = f"{self.size[0]} × {self.size[1]}"
            raise VeilError(f"{codec} cannot encode {size} at {info.fps} fps; use another codec") from error
        for sound in self._source.sounds if self._source else ():
            self._add_sound(sound, form)
        try:
            self._container.start_encoding()
        except ArgumentError as error:
            if not self._sounds:
                raise
            names = {copy.codec_context.codec.canonical_name for copy, _ in self._sounds.values()}
            raise self._refusal(" or ".join(sorted(names))) from error

    def _add_sound(self, sound: AudioStream, form: str) -> None:
        name = sound.codec_context.codec.canonical_name if sound.codec_context else "unknown"
        if name == "unknown" or (form == "mp4" and name.startswith("pcm_")):  # allowed now, but not played
            raise self._refusal(name)
        try:
            copy = self._container.add_stream_from_template(sound)
        except ValueError as error:
            raise self._refusal(name) from error
        self._sounds[sound.index] = copy, _Clock(1 / (sound.time_base or Fraction(1, 1000)))

    def _refusal(self, codec: str) -> VeilError:
        other = "" if self._path.suffix.lower() == ".mkv" else " let its name end in .mkv, or"
        return VeilError(f"{self._path} cannot hold {codec} sound;{other} drop the sound")

    def write(self, frames: Frames, times: Sequence[Time]) -> None:
        _check(self._info, frames, times)
        if not self._belt.put(Window(frames, list(times))):
            raise self._belt.error or RuntimeError("this sink is closed")
        self._written += len(frames)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: Any) -> None:
        try:
            if failure[1] is None:
                self._belt.end()
                self._thread.join()
                if self._belt.error is not None:
                    raise self._belt.error
                with _writing(self._draft):
                    self._verify()
                    self._draft.publish()
        finally:
            self._belt.end(RuntimeError("this sink is closed"), now=True)
            self._thread.join()
            self._draft.discard()  # first, so that libav does not trouble to finish it
            with suppress(FFmpegError, OSError):
                self._container.close()

    def _drain(self) -> None:
        """What the thread does: encode what comes on the belt, then finish the file."""
        try:
            with _writing(self._draft):
                while (window := self._belt.get()) is not None:
                    for pixels, time in zip(window.frames, window.times, strict=True):
                        frame = self._picture(pixels)
                        frame.pts, frame.duration = time
                        frame.time_base = self._info.time_base
                        self._container.mux(self._stream.encode(frame))
                    self._copy_sound()
                self._container.mux(self._stream.encode(None))
                self._copy_sound()
                self._container.close()
        except BaseException as error:
            self._belt.end(error, now=True)

    def _copy_sound(self) -> None:
        for packet in self._source.take_sound() if self._source else ():
            copy, clock = self._sounds[packet.stream_index]
            tick = clock.tick(packet.dts, packet.duration or 1)
            packet.pts = tick if packet.pts is None or packet.dts is None else packet.pts + tick - packet.dts
            packet.dts = tick
            packet.stream = copy
            self._container.mux(packet)

    def _picture(self, pixels: Frames) -> VideoFrame:
        """Pixels ``(H, W, 3)`` as the encoder wants them; OpenCV is quicker at it than libswscale by far."""
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
            if part is not plane:  # OpenCV did not write where it was told, where old pixels may lie
                plane[...] = part
        return frame

    def _verify(self) -> None:
        """Read the finished file back: it must hold every frame that was written."""
        if not self._written:
            raise VeilError(f"{self._path} would hold no frame; nothing was written")
        with av.open(f"file:{self._draft.path}") as container:
            found = sum(packet.size > 0 for packet in container.demux(video=0))
        if found != self._written:
            raise VeilError(f"{self._path} would hold {found} of {self._written} frames; nothing was written")


class _StillSource:
    """A picture: a video of one frame that lasts a second."""

    def __init__(self, path: Path) -> None:
        self.live, self.lost = False, 0
        try:
            with warnings.catch_warnings(action="ignore"), Image.open(path) as image:
                pages = getattr(image, "n_frames", 1)
                # Phones add to a JPEG what is no page: depth, brightness, a preview. Pillow calls that MPO.
                if pages > 1 and image.format != "MPO":
                    raise VeilError(f"{path} holds {pages} pictures; save them one by one, or as a video")
                self._pixels = _still(image)
        except VeilError:
            raise
        except Exception as error:  # Pillow's readers raise all kinds on strange files
            said = f"{path} is no picture that can be read; check that it opens in a viewer"
            raise VeilError(said) from error
        height, width = self._pixels.shape[:2]
        self.info = VideoInfo(width, height, Fraction(1), 1, Fraction(1))

    def windows(self) -> Iterator[Window]:
        yield Window(self._pixels[None], [Time(0, 1)])

    def stop(self) -> None: ...

    def close(self) -> None: ...


class _StillSink:
    """A picture file, without metadata."""

    def __init__(self, path: Path, info: VideoInfo, *, overwrite: bool) -> None:
        self._path, self._info = path, info
        self.size = info.width, info.height
        self._frames: list[Frames] = []
        self._draft = Draft(path, overwrite=overwrite)

    def write(self, frames: Frames, times: Sequence[Time]) -> None:
        _check(self._info, frames, times)
        self._frames += list(frames)
        if len(self._frames) > 1:
            raise VeilError(f"{self._path} holds one picture, and a video has more; let its name end in .mp4")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: Any) -> None:
        try:
            if failure[1] is None:
                if not self._frames:
                    raise VeilError(f"{self._path} would hold no frame; nothing was written")
                with _writing(self._draft):
                    image = Image.fromarray(np.ascontiguousarray(self._frames[0]))
                    if ".tif" in self._path.suffix.lower():
                        image.save(self._draft.path, compression="tiff_deflate")
                    else:
                        image.save(self._draft.path, quality=95)
                    self._draft.publish()
        finally:
            self._draft.discard()


def _still(image: Image.Image) -> Frames:
    """A picture as it is meant to be seen, RGB ``(H, W, 3)``."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # grey of 16 bits, in several guises
        grey = np.clip(np.asarray(image, np.float32) / 257, 0, 255).round().astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    if image.has_transparency_data:
        return _on_black(np.asarray(image.convert("RGBA")))
    return np.array(image.convert("RGB"))


def _on_black(rgba: Frames) -> Frames:
    alpha = rgba[..., 3:].astype(np.uint16)
    return ((rgba[..., :3] * alpha + 127) // 255).astype(np.uint8)


def _turn(frame: VideoFrame) -> tuple[bool, bool, bool]:
    """How to lay a frame out as displayed: swap its axes, then mirror it, then turn it upside down."""
    quarters = round(frame.rotation / 90) % 4  # counterclockwise
    a, b, c, d = [(1, 0, 0, 1), (0, -1, 1, 0), (-1, 0, 0, -1), (0, 1, -1, 0)][quarters]
    with suppress(KeyError, ValueError):  # the matrix also knows mirrors: x' = ax + cy, y' = bx + dy
        matrix = frame.side_data["DISPLAYMATRIX"]  # pyright: ignore
        a, b, _, c, d = np.frombuffer(memoryview(matrix), np.int32)[:5].tolist()
    across = abs(b) > abs(a)
    return across, (c if across else a) < 0, (b if across else d) < 0


def _to_yuv(matrix: int) -> np.ndarray:
    """RGB to Y, Cb and Cr of 8 bits and limited range: ``(3, 4)``, of which the last column is added."""
    red, blue = _LUMA[matrix]
    luma = np.array([red, 1 - red - blue, blue])
    cb = (np.array([0, 0, 1]) - luma) / (2 - 2 * blue)
    cr = (np.array([1, 0, 0]) - luma) / (2 - 2 * red)
    scaled = np.stack([luma * 219, cb * 224, cr * 224]) / 255
    return np.column_stack([scaled, [16, 128, 128]]).astype(np.float32)


def _check(info: VideoInfo, frames: Frames, times: Sequence[Time]) -> None:
    if frames.shape[1:] != (info.height, info.width, 3) or frames.dtype != np.uint8:
        shape = f"(T, {info.height}, {info.width}, 3) uint8"
        raise ValueError(f"frames are {shape}, got {frames.shape} {frames.dtype}")
    if len(frames) != len(times):
        raise ValueError(f"every frame has its time, got {len(frames)} frames and {len(times)} times")


@contextmanager
def _reading(name: str, *, live: bool = False) -> Iterator[None]:
    """Make one sentence of whatever is wrong with the input."""
    try:
        yield
    except (FFmpegError, OSError) as error:
        if live:
            said = f"{name} sends no video ({error.strerror}); check that it is on, and its address"
        elif type(error) is FileNotFoundError:
            said = f"{name} does not exist; check the name"
        elif type(error) is PermissionError:  # libav means something else by it
            said = f"{name} may not be read; check its permissions"
        else:
            said = (
                f"{name} is no video that can be read, or is cut short; check that it plays in a video player"
            )
        raise VeilError(said) from error


def _writing(draft: Draft) -> AbstractContextManager[None]:
    """Turn what libav and the system raise while an output is written into one sentence."""
    return io_errors(draft.place, "written", errors=(FFmpegError, OSError))
