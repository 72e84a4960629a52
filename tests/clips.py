"""Makes the videos that tests need: of any codec, pixel format, rate and rotation, with sound, and broken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from av.audio.stream import AudioStream
from av.codec.context import Flags
from av.video.reformatter import Interpolation
from av.video.stream import VideoStream

Pixels = npt.NDArray[np.uint8]
EXACT = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT


def picture(index: int = 0, width: int = 64, height: int = 48) -> Pixels:
    """A smooth picture ``(H, W, 3)``: every corner has a colour of its own, and every index a blue."""
    y, x = np.mgrid[0:height, 0:width]
    red, green = x * 200 // max(1, width - 1) + 25, y * 200 // max(1, height - 1) + 25
    return np.stack([red, green, np.full_like(x, 30 + index * 17 % 200)], axis=-1).astype(np.uint8)


def pictures(count: int, width: int = 64, height: int = 48) -> list[Pixels]:
    return [picture(index, width, height) for index in range(count)]


def noise(count: int, width: int = 64, height: int = 48) -> list[Pixels]:
    """A picture that moves and is hard to code, so that every frame takes many bytes."""
    wide = np.random.default_rng(0).integers(0, 256, (height, width + 2 * count, 3), np.uint8)
    return [np.ascontiguousarray(wide[:, 2 * i : 2 * i + width]) for i in range(count)]


def video(
    path: Path,
    frames: Iterable[Pixels] | None = None,
    *,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    rate: Fraction | int = 25,
    times: Sequence[int] | None = None,
    time_base: Fraction | None = None,
    last: int = 1,
    turn: tuple[int, bool] | None = None,
    aspect: Fraction | None = None,
    color: tuple[int, int] = (2, 0),
    sound: str | None = None,
    sound_rate: int = 44_100,
    late: Fraction = Fraction(0),
    metadata: dict[str, str] | None = None,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
    form: str | None = None,
) -> Path:
    """Encode RGB or RGBA frames.

    ``times`` are ticks of ``time_base``, ``last`` is the duration of the last; ``turn`` is in degrees
    counterclockwise, and whether mirrored; ``color`` is matrix and range; ``late`` delays the sound.
    """
    frames = list(pictures(10) if frames is None else frames)
    height, width = frames[0].shape[:2]
    with av.open(str(path), "w", format=form, container_options=container_options or {}) as container:
        container.metadata.update(metadata or {})
        stream = container.add_stream(codec, rate=rate, options=options or {})
        assert isinstance(stream, VideoStream)
        coder = stream.codec_context
        coder.width, coder.height, coder.pix_fmt = width, height, pix_fmt
        coder.time_base = time_base or 1 / Fraction(rate)
        coder.flags |= Flags.frame_duration
        coder.colorspace, coder.color_range = color
        if color[0] != 2:
            coder.color_primaries = coder.color_trc = color[0]
        if aspect is not None:
            coder.sample_aspect_ratio = aspect
        if turn is not None:
            stream.set_display_rotation(turn[0], hflip=turn[1])
        stream.metadata.update(metadata or {})
        tone = container.add_stream(sound, rate=sound_rate) if sound else None
        if isinstance(tone, AudioStream):
            tone.codec_context.layout = "mono"
            tone.metadata.update(metadata or {})
        times = list(range(len(frames))) if times is None else list(times)
        for pixels, time, following in zip(frames, times, [*times[1:], times[-1] + last], strict=True):
            raw = av.VideoFrame.from_ndarray(pixels, "rgba" if pixels.shape[2] == 4 else "rgb24")
            matrix = 5 if color[0] in (2, 5, 6) else color[0]
            frame = raw.reformat(
                format=pix_fmt, dst_colorspace=matrix, dst_color_range=color[1] or None, interpolation=EXACT
            )
            frame.pts, frame.duration, frame.time_base = time, following - time, coder.time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if isinstance(tone, AudioStream):
            end = (times[-1] + last) * coder.time_base
            for packet in _sine(tone, sound_rate, late, end):
                container.mux(packet)
    return path


def _sine(stream: AudioStream, rate: int, start: Fraction, end: Fraction) -> Iterable[av.Packet]:
    for at in range(int(start * rate), int(end * rate), 1024):
        wave = (np.sin((at + np.arange(1024)) / 15) * 8000).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(wave[None], "s16", "mono")
        frame.sample_rate, frame.pts, frame.time_base = rate, at, Fraction(1, rate)
        yield from stream.encode(frame)
    yield from stream.encode(None)


def sound_only(path: Path) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=44_100)
        assert isinstance(stream, AudioStream)
        stream.codec_context.layout = "mono"
        for packet in _sine(stream, 44_100, Fraction(0), Fraction(1)):
            container.mux(packet)
    return path


def shortened(path: Path, share: float) -> Path:
    """The first part of a file, as a copy that was broken off."""
    data = path.read_bytes()
    short = path.with_name(f"short-{path.name}")
    short.write_bytes(data[: int(len(data) * share)])
    return short


def spoiled(path: Path, packet: int, *, skip: int = 24, length: int = 200) -> Path:
    """A copy in which bytes of one packet (counted as stored) are random, but for the first ``skip``."""
    with av.open(str(path)) as container:
        spots = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    data = bytearray(path.read_bytes())
    start, size = spots[packet]
    assert start is not None
    skip = min(skip, size // 3)
    length = min(length, size - skip)
    data[start + skip : start + skip + length] = b"\xff" + np.random.default_rng(packet).bytes(length - 1)
    bad = path.with_name(f"bad-{path.name}")
    bad.write_bytes(data)
    return bad
