"""What a video is to the rest of Veil: sizes, times and colours, windows of frames, and the interfaces of sources and sinks.

*source*   a file, a still, a camera or a stream, read as windows of a few consecutive frames.
*sink*     one output file, which gets its name only when it is whole.

Times are whole ticks of ``VideoInfo.time_base``, never floats, so that odd rates stay exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np

from veil.core import Frames

Codec = Literal["h264", "h265", "ffv1"]
CONTAINERS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}  # libav's names
OUTPUT_SUFFIXES: dict[Codec, tuple[str, ...]] = {
    "h264": tuple(CONTAINERS),
    "h265": tuple(CONTAINERS),
    "ffv1": (".mkv",),
}


class ColorTags(NamedTuple):
    """What the numbers in a video mean as light, numbered as in ITU-T H.273; 2 is "unspecified"."""

    matrix: int = 1
    primaries: int = 1
    transfer: int = 1


BT709 = ColorTags()


@dataclass(frozen=True)
class VideoInfo:
    """What is known of a video before its frames are decoded: all of it as displayed, after rotation."""

    width: int
    height: int
    fps: Fraction  # the mean rate; the exact times are each frame's
    frames: int | None = None  # None: the container does not state it
    time_base: Fraction = Fraction(1, 90_000)  # seconds in a tick
    aspect: Fraction = Fraction(1)  # of one pixel: width by height
    color: ColorTags = BT709


class FrameTime(NamedTuple):
    """When a frame is shown and for how long, in ticks of ``VideoInfo.time_base``; ``pts`` only grows."""

    pts: int
    duration: int


class FrameWindow(NamedTuple):
    """A few consecutive frames, and when each is shown."""

    frames: Frames  # (T, H, W, 3)
    times: list[FrameTime]


class VideoSource(Protocol):
    """A video to read, once."""

    info: VideoInfo
    live: bool  # a camera or a stream: it ends when it is stopped, and gaps are no damage
    undecodable: int  # frames that could not be decoded so far

    def windows(self) -> Iterator[FrameWindow]:
        """Every frame once, in order; a damaged video ends in a VeilError, unless it is salvaged or live."""
        ...

    def stop(self) -> None:
        """Make `windows` end soon; may be called from any thread, also while a live source is silent."""
        ...

    def close(self) -> None:
        """Close the file or device."""
        ...


class VideoSink(Protocol):
    """A context manager: the whole file on success, nothing on any error."""

    size: tuple[int, int]  # width and height of what is written

    def write(self, frames: Frames, times: Sequence[FrameTime]) -> None:
        """Add frames ``(T, H, W, 3)``; they belong to the sink from now on and must not be changed."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *failure: Any) -> None: ...


def check_frames(info: VideoInfo, frames: Frames, times: Sequence[FrameTime]) -> None:
    """Raise where frames do not have the size of the video, or not each has a time."""
    if frames.shape[1:] != (info.height, info.width, 3) or frames.dtype != np.uint8:
        shape = f"(T, {info.height}, {info.width}, 3) uint8"
        raise ValueError(f"frames are {shape}, got {frames.shape} {frames.dtype}")
    if len(frames) != len(times):
        raise ValueError(f"every frame has its time, got {len(frames)} frames and {len(times)} times")
