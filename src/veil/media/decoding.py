"""Videos that libav decodes: files, cameras and streams. Decoding runs in a thread of its own."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain

import av
import cv2
import numpy as np
from av.codec.context import ThreadType
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter

from veil.core import Frames, VeilError
from veil.media.channel import Channel
from veil.media.color import on_black, orientation
from veil.media.libav import reading
from veil.media.timestamps import TimestampClock
from veil.media.video import BT709, ColorTags, FrameTime, FrameWindow, VideoInfo

WINDOW_FRAMES, WINDOW_BYTES = 16, 24 << 20  # from 32 MB on, malloc maps every window anew
AUDIO_BYTES = 64 << 20  # of sound that may wait for its picture
TIMEOUT = 10.0  # seconds that a camera or a stream may be silent
# One packet is one frame, so a packet that became no frame is an undecodable frame. In other codecs a frame may need
# two packets (fields) and a packet may show nothing (VP8's hidden frames): there, only errors can be counted.
PACKET_IS_FRAME = {"h264", "hevc", "vp9", "av1"}


class LibavSource:
    """A video that libav reads. The first frame is decoded at once: only it has size, orientation and colour."""

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
        self.live, self.undecodable = live, 0
        self._name, self._strict = name, not (live or salvage)
        with reading(name, live=live):
            self._container = av.open(
                url or f"file:{name}",
                format=driver,
                metadata_errors="ignore",
                timeout=TIMEOUT if live else None,
            )
        videos = [s for s in self._container.streams.video if not s.disposition & Disposition.attached_pic]
        if not videos or self._container.format.name in ("concat", "tty"):
            raise VeilError(f"{name} holds no video: check that it is the right file.", code="no-video")
        self._stream = min(videos, key=lambda stream: not stream.disposition & Disposition.default)
        self._codec = self._stream.codec_context
        if self._codec is None:
            raise VeilError(
                f"{name} has a codec that is not supported: convert it to H.264 first.", code="codec-unknown"
            )
        self._packet_is_frame = (
            self._codec.codec.canonical_name in PACKET_IS_FRAME and self._codec.field_order <= 1
        )
        # Decoding frames in parallel is faster, but a broken frame near the end spoils its neighbours.
        # It also adds latency, which a live picture has no time for.
        alone = salvage or live or not self._packet_is_frame
        self._codec.thread_type = ThreadType.SLICE if alone else ThreadType.AUTO
        self._codec.copy_opaque = True
        self._converter = VideoReformatter()
        self._channel: Channel[FrameWindow] = Channel()
        self._thread: threading.Thread | None = None
        self.audio_streams = list(self._container.streams.audio) if audio else []
        self._packets_of_audio: deque[Packet] = deque()
        self._audio_bytes, self._audio_lock = 0, threading.Lock()
        # What is stored or shown before the first key frame refers to what was cut off: it is not damaged.
        self._started, self._first_key = False, 0
        self._packets = self._expected = self._decoded = self._errors = self._yielded = 0
        self._ends: dict[int, int] = {}  # of the packets of each stream, in its own ticks
        # AVI counts empty frames too, which its index leaves out; an index of one was cut off.
        indexed = len(self._stream.index_entries) if self._container.format.name == "avi" else 0
        self._indexed = indexed if indexed > 1 else 0
        self._frames = self._decode()
        with reading(name, live=live):
            first = next(self._frames, None)
        if first is None:
            raise VeilError(
                f"{name} holds no frame that can be decoded: check that it plays in a player.",
                code="no-frame",
            )
        self._frames = chain([first], self._frames)
        self._coded, self._orientation = (first.width, first.height), orientation(first)
        self._base = self._stream.time_base or Fraction(1, 90_000)
        self._start = first.pts or 0  # what the output calls zero, in ticks of the stream
        if self._container.start_time is not None and not live:
            start = Fraction(self._container.start_time, av.time_base)
            self._start = min(self._start, round(start / self._base))
        self.info = self._read_info(first)
        self._ticks = self._base / self.info.time_base
        self._step = 1 / (self.info.fps * self.info.time_base)
        self._clock = TimestampClock(1 / self.info.time_base)

    def _read_info(self, first: VideoFrame) -> VideoInfo:
        stream, (width, height) = self._stream, self._coded
        fps, guess = stream.average_rate, stream.guessed_rate
        if guess and (not fps or abs(guess / fps - 1) < Fraction(1, 1000)):
            fps = guess  # ticks of a millisecond are too coarse to find 30000/1001 by averaging
        fps = fps or Fraction(25)
        # Ten ticks a frame or more, so that there is room between frames; mp4 wants no billions in a second.
        base = max(self._base, Fraction(1, 10_000_000)) / max(1, math.ceil(10 * self._base * fps))
        aspect = stream.sample_aspect_ratio or Fraction(1)
        if self._orientation[0]:
            width, height, aspect = height, width, 1 / aspect
        color = BT709
        if not (first.format.is_rgb or first.format.has_palette):
            tags = first.colorspace, first.color_primaries, first.color_trc
            color = ColorTags(*(2 if tag in (0, 3) else tag for tag in tags))
        frames = self._indexed or stream.frames
        if (
            "mp4" in self._container.format.name
        ):  # an edit list hides some; in fragments, the first states its own
            hidden = sum(entry.is_discard for entry in stream.index_entries)
            frames = frames - hidden if frames == len(stream.index_entries) else 0
        return VideoInfo(width, height, fps, frames or None, base, aspect, color)

    def windows(self) -> Iterator[FrameWindow]:
        """Every frame once, in order, as `VideoSource` states."""
        if self._thread is not None:
            raise RuntimeError("a source is read once; open it again")
        self._thread = threading.Thread(target=self._decode_windows, name="veil-decode", daemon=True)
        self._thread.start()
        try:
            while (window := self._channel.get()) is not None:
                yield window
        finally:
            self._end()

    def _end(self) -> None:
        self._channel.end(now=True)
        if self._thread is not None:
            self._thread.join(0.5 if self.live else None)  # the thread of a silent source ends at its timeout

    def stop(self) -> None:
        """Make `windows` end soon."""
        self._channel.end()

    def close(self) -> None:
        """Close the file or device."""
        self._end()
        if self._thread is None or not self._thread.is_alive():
            self._container.close()

    def take_audio(self) -> list[Packet]:
        """The sound met since the last call, with times counted from the video's zero."""
        with self._audio_lock:
            packets = list(self._packets_of_audio)
            self._packets_of_audio.clear()
            self._audio_bytes = 0
        for packet in packets:
            shift = round(self._start * self._base / (packet.time_base or self._base))
            packet.pts = None if packet.pts is None else packet.pts - shift
            packet.dts = None if packet.dts is None else packet.dts - shift
        return packets

    def _decode_windows(self) -> None:
        """What the thread does: decode windows into the channel, then report damage."""
        try:
            with reading(self._name, live=self.live):
                for window in self._windows():
                    if not self._channel.put(window):
                        return
            if self.undecodable and self._strict:
                every = self._yielded + self.undecodable
                raise VeilError(
                    f"{self._name}: {self.undecodable} of {every} frames could not be decoded: copy or record it"
                    " again, or pass --salvage to anonymize the rest.",
                    code="damaged",
                )
            self._channel.end()
        except BaseException as error:
            self._channel.end(error)

    def _windows(self) -> Iterator[FrameWindow]:
        shape = self.info.height, self.info.width, 3
        length = 1 if self.live else min(WINDOW_FRAMES, max(1, WINDOW_BYTES // math.prod(shape)))
        frames, times = np.empty((length, *shape), np.uint8), []
        for frame in self._frames:
            if (frame.width, frame.height) != self._coded:
                before, after = "{} × {}".format(*self._coded), f"{frame.width} × {frame.height}"
                raise VeilError(
                    f"{self._name} changes its size from {before} to {after}: cut it there first.",
                    code="size-changes",
                )
            if self.undecodable and self._strict:
                continue  # go on only to count the others
            stated = None if frame.pts is None else (frame.pts - self._start) * self._ticks
            pts = self._clock.tick(stated, self._step)
            if times:  # durations in containers are in the order of decoding, and often wrong
                times[-1] = FrameTime(times[-1].pts, pts - times[-1].pts)
            if len(times) == length:
                yield FrameWindow(frames, times)
                frames, times = np.empty_like(frames), []
            frames[len(times)] = self._to_rgb(frame)
            times.append(FrameTime(pts, max(1, round(frame.duration * self._ticks or self._step))))
            if self.live:  # it is not kept until the next one comes, which may be never
                yield FrameWindow(frames, times)
                frames, times = np.empty_like(frames), []
        if times:
            if "mp4" in self._container.format.name and self._stream.duration and not self.undecodable:
                end = (self._stream.start_time or 0) + self._stream.duration - self._start
                left = round(end * self._ticks) - times[-1].pts
                if abs(left - times[-1].duration) * self.info.time_base > Fraction(1, 1000):  # its rounding
                    times[-1] = FrameTime(times[-1].pts, max(1, left))
            yield FrameWindow(frames[: len(times)], times)

    def _decode(self) -> Iterator[VideoFrame]:
        """Every frame that can be decoded, in order; the others are counted in ``undecodable``."""
        for packet in self._demux():
            for frame in self._frames_of(packet):
                self._yielded += 1
                yield frame
            self.undecodable = self._errors
        self.undecodable = (
            max(self._errors, self._expected - self._decoded if self._packet_is_frame else 0)
            + self._missing()
        )

    def _missing(self) -> int:
        """How many frames the container states and does not hold."""
        if "mp4" in self._container.format.name:
            return max(0, len(self._stream.index_entries) - self._packets)  # the index includes edit lists
        if "matroska" in self._container.format.name and self._container.duration:  # states a time only
            ends = [end * (self._container.streams[i].time_base or 0) for i, end in self._ends.items()]
            gap = Fraction(self._container.duration, av.time_base) - max(ends, default=0)
            return round(gap * (self._stream.average_rate or 25)) if gap > 1 else 0
        return max(0, (self._indexed or self._stream.frames) - self._packets)

    def _demux(self) -> Iterator[Packet | None]:
        """The packets of the video, then None; those of the sound are set aside."""
        audio_streams = {stream.index for stream in self.audio_streams}
        try:
            for packet in self._container.demux():
                if self._channel.ended:
                    return
                if not packet.size and packet.dts is None:
                    continue  # libav has reached the end of this stream
                index, time = packet.stream_index, packet.dts if packet.pts is None else packet.pts
                self._ends[index] = max(self._ends.get(index, 0), (time or 0) + (packet.duration or 0))
                if index == self._stream.index:
                    self._packets += 1
                    yield packet
                elif index in audio_streams and packet.size and not (packet.is_discard or packet.is_corrupt):
                    self._keep_audio(packet)
        except IndexError:
            pass  # at the end, PyAV fails at streams that appeared on the way
        except (FFmpegError, OSError):
            if self.live and not self._yielded:
                raise
            self._errors += 1
        yield None

    def _keep_audio(self, packet: Packet) -> None:
        with self._audio_lock:
            self._packets_of_audio.append(packet)
            self._audio_bytes += packet.size
            if self._audio_bytes > AUDIO_BYTES:
                raise VeilError(
                    f"{self._name} stores its sound too far from its picture: drop the sound.",
                    code="audio-too-far",
                )

    def _frames_of(self, packet: Packet | None) -> Iterator[VideoFrame]:
        """Decode one packet, or with None what the decoder still holds."""
        if packet is not None:
            if not packet.size:
                return  # a frame that repeats the last; to the decoder it would mean the end
            if packet.is_keyframe and not self._started:
                self._started, self._first_key = True, packet.pts or 0
            self._expected += not packet.is_discard and self._counts(packet.pts)
            packet.opaque = packet.is_corrupt or None
        try:
            frames = self._codec.decode(packet)
        except FFmpegError:
            self._errors += self._started
            return
        for frame in frames:
            if frame.is_corrupt or frame.opaque:
                self._errors += self._started and (frame.pts is None or self._counts(frame.pts))
                continue
            self._packet_is_frame = self._packet_is_frame and not frame.interlaced_frame
            self._decoded += self._counts(frame.pts)
            self._started = True
            yield frame

    def _counts(self, pts: int | None) -> bool:
        return self._started and pts is not None and pts >= self._first_key

    def _to_rgb(self, frame: VideoFrame) -> Frames:
        """The frame as displayed, RGB ``(H, W, 3)``; what is transparent lies on black."""
        clear = frame.format.has_palette or any(part.is_alpha for part in frame.format.components)
        converted = self._converter.reformat(frame, format="rgba" if clear else "rgb24", threads=1)
        plane, depth = converted.planes[0], 4 if clear else 3
        shape, strides = (converted.height, converted.width, depth), (plane.line_size, depth, 1)
        pixels = np.ndarray(
            shape, np.uint8, memoryview(plane), strides=strides
        )  # a view: it is copied once, by the caller
        if clear:
            pixels = on_black(pixels)
        across, mirrored, flipped = self._orientation
        if across:
            pixels = np.asarray(cv2.transpose(pixels), np.uint8)
        if mirrored or flipped:
            pixels = np.asarray(cv2.flip(pixels, -1 if mirrored and flipped else int(mirrored)), np.uint8)
        return pixels
