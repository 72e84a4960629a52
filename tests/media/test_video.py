"""Reading and writing video: counts, times, colours, sound, damage, and that errors leave nothing."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import clips
from errors import refuses
from veil.core import Frames, VeilError
from veil.media import decoding, encoding
from veil.media.color import rgb_to_yuv
from veil.media.inputs import IMAGE_SUFFIXES, VIDEO_SUFFIXES, is_image, is_video
from veil.media.sinks import open_sink
from veil.media.sources import open_source
from veil.media.stills import to_rgb
from veil.media.timestamps import TimestampClock
from veil.media.video import FrameTime, VideoInfo, VideoSource

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
FFMPEG = imageio_ffmpeg.get_ffmpeg_exe()
NTSC = Fraction(30000, 1001)


def read(spec: str | Path, **how: bool) -> tuple[VideoSource, Frames, list[Fraction]]:
    """Everything of a video: its source, its frames and the second at which each is shown."""
    source = open_source(spec, **how)
    windows = list(source.windows())
    source.close()
    times = [time for window in windows for time in window.times]
    assert all(a.pts < b.pts for a, b in pairwise(times))
    return source, np.concatenate([w.frames for w in windows]), [t.pts * source.info.time_base for t in times]


def copy(spec: str | Path, output: Path, *, audio: bool = False, salvage: bool = False, **how) -> int:
    """Pass a video through source and sink as it is; returns how many frames there were."""
    source, count = open_source(spec, audio=audio, salvage=salvage), 0
    with open_sink(output, source.info, audio_from=source if audio else None, **how) as sink:
        for window in source.windows():
            sink.write(window.frames, window.times)
            count += len(window.times)
    source.close()
    return count


def seen(path: Path, kind: str = "video") -> list[tuple[Fraction, Fraction]]:
    """When an independent reader shows each frame or sound, in seconds, and for how long."""
    with av.open(str(path)) as container:
        if kind == "audio":
            packets = container.demux(audio=0)
            found = [(p.pts, p.duration) for p in packets if p.size and not p.is_discard]
        else:
            found = [(f.pts, f.duration) for f in container.decode(container.streams.video[0])]
        base = container.streams.get({kind: 0})[0].time_base or Fraction(0)
    return [((pts or 0) * base, (duration or 0) * base) for pts, duration in found]


def ffmpeg(*arguments: str | Path) -> bytes:
    return subprocess.run(
        [FFMPEG, "-v", "error", *map(str, arguments)], capture_output=True, check=True
    ).stdout


def shown(path: Path, width: int, height: int) -> np.ndarray:
    """The frames as the ffmpeg program shows them, ``(T, H, W, 3)``."""
    raw = ffmpeg("-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-fps_mode", "passthrough", "-")
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """How many levels nearly all (99 %) of the values lie apart at most."""
    return float(np.percentile(np.abs(a.astype(int) - b.astype(int)), 99))


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("veil-")]


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    yield
    end = time.monotonic() + 5
    while threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert threads() == []


# What goes in comes out: numbers, times, sizes


FORMATS = {
    "yuv420p": ("libx264", ".mp4"),
    "yuvj420p": ("libx264", ".mp4"),
    "yuv422p": ("libx264", ".mkv"),
    "yuv444p": ("libx264", ".mp4"),
    "yuv420p10le": ("libx264", ".mp4"),
    "gray": ("ffv1", ".mkv"),
    "gray10le": ("ffv1", ".mkv"),
    "gray16le": ("ffv1", ".mkv"),
    "rgb24": ("png", ".mov"),
    "bgra": ("ffv1", ".mkv"),
    "yuva420p": ("ffv1", ".mkv"),
    "rgb8": ("gif", ".gif"),
}
EVEN = {"yuv420p", "yuvj420p", "yuv422p", "yuv420p10le"}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.one_of(
        st.sampled_from([(1, 1), (7, 5), (2, 64)]), st.tuples(st.integers(1, 70), st.integers(1, 70))
    ),
    rate=st.sampled_from(
        [Fraction(1), Fraction(12), Fraction(25), NTSC, Fraction(60), Fraction(997, 33), Fraction(120)]
    ),
    pix_fmt=st.sampled_from(sorted(FORMATS)),
    count=st.integers(1, 20),
    codec=st.sampled_from(["h264", "ffv1"]),
)
def test_any_video_keeps_its_frames(tmp_path: Path, size, rate, pix_fmt, count, codec) -> None:
    (width, height), (encoder, suffix) = size, FORMATS[pix_fmt]
    if pix_fmt in EVEN:
        width, height = width + width % 2, height + height % 2
    if suffix == ".gif":
        rate = Fraction(10)
    options = {"level": "1"} if encoder == "ffv1" else {}  # later levels refuse what they cannot slice
    frames = clips.pictures(count, width, height)
    path = tmp_path / f"in{suffix}"
    source = clips.video(path, frames, codec=encoder, pix_fmt=pix_fmt, rate=rate, options=options)
    output = tmp_path / ("out.mkv" if codec == "ffv1" else "out.mp4")
    info = open_source(source).info
    assert (info.width, info.height) == (width, height)
    assert copy(source, output, codec=codec, overwrite=True) == count
    before, after = seen(source), seen(output)
    assert len(before) == len(after) == count
    rounding = Fraction(1, 2000) if codec == "ffv1" else 0  # Matroska counts milliseconds
    assert all(abs(a[0] - b[0]) <= rounding for a, b in zip(before, after, strict=True))
    with av.open(str(output)) as container:
        stream = container.streams.video[0]
        even = codec == "h264"
        assert (stream.width, stream.height) == (width + (width % 2) * even, height + (height % 2) * even)
        assert stream.pix_fmt == ("yuv420p" if even else "bgr0")


@pytest.mark.parametrize(("width", "height"), [(1, 1), (7, 5), (1, 8), (33, 16)])
def test_odd_sizes_repeat_the_last_row_and_column(tmp_path: Path, width: int, height: int) -> None:
    frames = np.repeat(np.stack(clips.pictures(3, width, height))[..., :1], 3, axis=-1)  # colours are blurred
    info = VideoInfo(width, height, Fraction(25))
    with open_sink(tmp_path / "a.mp4", info, quality=1) as sink:
        assert sink.size == (width + width % 2, height + height % 2)
        sink.write(frames, [FrameTime(3600 * i, 3600) for i in range(3)])
    _, found, _ = read(tmp_path / "a.mp4")
    padded = np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    assert found.shape == padded.shape
    assert apart(found, padded) <= 4


def test_no_old_memory_is_written_where_opencv_makes_its_own(tmp_path: Path, monkeypatch) -> None:
    resize = encoding.cv2.resize
    monkeypatch.setattr(encoding.cv2, "resize", lambda image, size, _, **how: resize(image, size, **how))
    source = clips.video(tmp_path / "in.mp4", options={"crf": "4"})
    copy(source, tmp_path / "out.mp4", quality=4)
    assert apart(read(source)[1], read(tmp_path / "out.mp4")[1]) <= 6


@pytest.mark.parametrize(("width", "height"), [(37, 21), (64, 48), (1, 1), (1, 500), (500, 2)])
def test_ffv1_loses_nothing(tmp_path: Path, width: int, height: int) -> None:
    frames = np.stack(clips.noise(5, width, height))
    with open_sink(tmp_path / "a.mkv", VideoInfo(width, height, Fraction(25)), codec="ffv1") as sink:
        sink.write(frames, [FrameTime(3600 * i, 3600) for i in range(5)])
    assert (read(tmp_path / "a.mkv")[1] == frames).all()
    assert (shown(tmp_path / "a.mkv", width, height) == frames).all()


@pytest.mark.parametrize("suffix", [".mp4", ".m4v", ".mov", ".mkv"])
@pytest.mark.parametrize("codec", ["h264", "h265"])
def test_the_output_is_what_browsers_play(tmp_path: Path, codec, suffix: str) -> None:
    output = tmp_path / f"out{suffix}"
    copy(clips.video(tmp_path / "in.mp4"), output, codec=codec)
    data = output.read_bytes()
    if suffix != ".mkv":
        assert 0 < data.index(b"moov") < data.index(b"mdat")  # can start to play before it is all there
        assert (b"hvc1" if codec == "h265" else b"avc1") in data
    with av.open(str(output)) as container:
        coder = container.streams.video[0].codec_context
        assert (coder.name, coder.pix_fmt) == ("hevc" if codec == "h265" else "h264", "yuv420p")


def test_quality_makes_files_larger_or_smaller(tmp_path: Path) -> None:
    source = clips.video(tmp_path / "in.mp4", clips.noise(5))
    sizes = []
    for quality in (10, None, 40):
        copy(source, tmp_path / f"{quality}.mp4", quality=quality)
        sizes.append((tmp_path / f"{quality}.mp4").stat().st_size)
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3


VARIABLE = [0, 40, 1040, 1047, 1080, 2000, 2001, 2040, 2060, 2100]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("variable.mp4", {"times": VARIABLE, "time_base": Fraction(1, 1000), "last": 500}),
        ("variable.mkv", {"times": VARIABLE, "time_base": Fraction(1, 1000), "last": 500}),
        ("variable-no-b.mp4", {"times": VARIABLE, "time_base": Fraction(1, 600), "options": {"bf": "0"}}),
        ("ntsc.mp4", {"rate": NTSC}),
        ("ntsc.mkv", {"rate": NTSC}),
        ("ntsc.ts", {"rate": NTSC}),
        ("ntsc.avi", {"rate": NTSC, "codec": "mpeg4"}),
        ("coarse.avi", {"rate": 10, "codec": "mpeg4"}),
        ("fast.mp4", {"rate": 240}),
        ("slow.mp4", {"rate": Fraction(1, 7)}),
        ("late.ts", {"rate": 25, "times": range(500_000, 536_000, 3600), "time_base": Fraction(1, 90_000)}),
        ("b-frames.mp4", {"rate": 25, "options": {"bf": "8", "b_strategy": "0", "refs": "4"}}),
        ("one.mp4", {"frames": clips.pictures(1), "rate": 5}),
    ],
)
def test_times_are_kept(tmp_path: Path, name: str, how: dict) -> None:
    source, output = clips.video(tmp_path / name, **how), tmp_path / "out.mp4"
    count = copy(source, output)
    before, after = seen(source), seen(output)
    assert len(before) == len(after) == count
    with av.open(str(source)) as container:
        start = Fraction(container.start_time or 0, av.time_base)
        end = container.streams.video[0].duration
    start = min(start, before[0][0])
    assert all(abs((a[0] - start) - b[0]) < Fraction(1, 80_000) for a, b in zip(before, after, strict=True))
    if name != "late.ts":
        assert [a[0] - before[0][0] for a in before] == [b[0] - after[0][0] for b in after]
    assert after[0][0] == 0
    with av.open(str(output)) as container:
        stream = container.streams.video[0]
        assert stream.duration is not None and stream.time_base
        last = Fraction(how.get("last", 1)) * how.get("time_base", 1 / Fraction(how.get("rate", 25)))
        if name not in ("late.ts", "variable.mkv", "ntsc.mkv"):
            assert stream.duration * stream.time_base == before[-1][0] - before[0][0] + last
    assert end is None or end > 0


def test_the_real_rate_is_found(tmp_path: Path) -> None:
    for name, codec in (("a.mp4", "libx264"), ("a.mkv", "libx264"), ("a.ts", "libx264"), ("a.avi", "mpeg4")):
        path = clips.video(tmp_path / name, clips.pictures(30), codec=codec, rate=NTSC)
        assert open_source(path).info.fps == NTSC, name


def test_the_number_of_frames_is_stated_where_it_is_known(tmp_path: Path) -> None:
    assert open_source(clips.video(tmp_path / "a.mp4")).info.frames == 10
    assert open_source(clips.video(tmp_path / "a.avi", codec="mpeg4")).info.frames == 10
    assert open_source(clips.video(tmp_path / "a.mkv")).info.frames is None
    fragments = {"movflags": "frag_keyframe+default_base_moof"}
    path = clips.video(tmp_path / "b.mp4", container_options=fragments, options={"g": "3"})
    assert open_source(path).info.frames is None  # though it states how many the first fragment has


def test_missing_times_come_from_the_rate(tmp_path: Path) -> None:
    path = clips.video(tmp_path / "a.h264", form="h264", rate=25, options={"bf": "0"})
    _, frames, times = read(path)
    assert times == [Fraction(i, 25) for i in range(10)]
    assert len(frames) == 10


@given(
    st.lists(st.one_of(st.none(), st.integers(-5000, 5000)), min_size=1, max_size=40),
    st.fractions(Fraction(1, 3), 50, max_denominator=1001),
)
def test_a_clock_always_goes_forward(stated: list[int | None], step: Fraction) -> None:
    clock = TimestampClock(Fraction(1000))
    ticks = [clock.tick(time, step) for time in stated]
    assert all(a < b for a, b in pairwise(ticks))
    if None not in stated and all(a < b for a, b in pairwise(stated)):  # pyright: ignore
        assert ticks == stated


def test_a_clock_nudges_fills_in_and_goes_on_after_a_break() -> None:
    clock = TimestampClock(Fraction(1000))
    assert [clock.tick(time, 40) for time in (0, 40, 40, 41, 120)] == [0, 40, 41, 42, 120]
    clock, third = TimestampClock(Fraction(1000)), Fraction(100, 3)
    assert [clock.tick(None, third) for _ in range(4)] == [0, 33, 67, 100]
    clock = TimestampClock(Fraction(1000))
    assert [clock.tick(time, 40) for time in (9000, 9040, 0, 10, 80)] == [9000, 9040, 9080, 9090, 9160]


# As displayed: rotation, aspect, size


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_rotation_is_baked_in(tmp_path: Path, degrees: int, mirrored: bool) -> None:
    source = clips.video(
        tmp_path / "in.mp4", turn=(degrees, mirrored), aspect=Fraction(4, 3), options={"crf": "5"}
    )
    info = open_source(source).info
    upright = degrees % 180 == 0
    assert (info.width, info.height) == ((64, 48) if upright else (48, 64))
    assert info.aspect == (Fraction(4, 3) if upright else Fraction(3, 4))
    copy(source, tmp_path / "out.mp4", quality=5)
    before, after = (
        shown(source, info.width, info.height),
        shown(tmp_path / "out.mp4", info.width, info.height),
    )
    assert apart(before, after) <= 6
    with av.open(str(tmp_path / "out.mp4")) as container:
        stream = container.streams.video[0]
        assert stream.sample_aspect_ratio == info.aspect
        assert next(container.decode(stream)).rotation == 0


def test_a_change_of_size_is_an_error(tmp_path: Path) -> None:
    small = clips.video(tmp_path / "a.ts", clips.pictures(30, 64, 48), options={"g": "5"})
    large = clips.video(tmp_path / "b.ts", clips.pictures(30, 96, 64), options={"g": "5"})
    both = tmp_path / "both.ts"
    both.write_bytes(small.read_bytes() + large.read_bytes())
    with refuses("size-changes"):
        copy(both, tmp_path / "out.mp4")
    assert not (tmp_path / "out.mp4").exists()


# Colours


@pytest.mark.parametrize("codec", ["h264", "h265", "ffv1"])
@pytest.mark.parametrize(
    ("color", "pix_fmt"),
    [
        ((1, 1), "yuv420p"),
        ((6, 1), "yuv420p"),
        ((5, 1), "yuv420p"),
        ((2, 0), "yuv420p"),
        ((1, 2), "yuvj420p"),
        ((6, 2), "yuvj420p"),
        ((9, 1), "yuv420p10le"),
    ],
)
def test_colours_are_kept(tmp_path: Path, color: tuple[int, int], pix_fmt: str, codec) -> None:
    source = clips.video(
        tmp_path / "in.mp4", clips.pictures(3, 128, 96), color=color, pix_fmt=pix_fmt, options={"crf": "4"}
    )
    before = shown(source, 128, 96)
    assert apart(read(source)[1], before) <= 5
    output = tmp_path / ("out.mkv" if codec == "ffv1" else "out.mp4")
    copy(source, output, codec=codec, quality=None if codec == "ffv1" else 6)
    after = shown(output, 128, 96)
    assert np.abs(before.astype(int) - after).mean() < 2
    assert apart(before, after) <= 5
    if codec != "ffv1":
        with av.open(str(output)) as container:
            coder = container.streams.video[0].codec_context
            assert (coder.colorspace, coder.color_primaries, coder.color_trc) == (color[0],) * 3
            assert coder.color_range in (0, 1)


def test_the_matrices_differ() -> None:
    """So that the test of colours above would see it if one stood for another."""
    rgb = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [0, 0, 0]]], np.uint8)
    expected = {1: [63, 173, 32, 235, 16], 6: [81, 145, 41, 235, 16]}  # from ITU-R BT.709 and BT.601
    for matrix, luma in expected.items():
        found = np.concatenate([rgb, np.ones_like(rgb[..., :1])], -1) @ rgb_to_yuv(matrix).T
        assert found[0, :, 0].round().astype(int).tolist() == luma


@pytest.mark.parametrize("pix_fmt", sorted(FORMATS))
def test_every_pixel_format_is_understood(tmp_path: Path, pix_fmt: str) -> None:
    encoder, suffix = FORMATS[pix_fmt]
    options = {"crf": "2"} if encoder == "libx264" else {}
    source = clips.video(
        tmp_path / f"in{suffix}", clips.pictures(3), codec=encoder, pix_fmt=pix_fmt, rate=10, options=options
    )
    _, frames, _ = read(source)
    assert frames.shape == (3, 48, 64, 3)
    assert apart(frames, shown(source, 64, 48)) <= 5
    wanted = np.stack(clips.pictures(3)).astype(float)
    if pix_fmt.startswith("gray"):
        wanted = np.repeat(wanted @ [[0.299], [0.587], [0.114]], 3, axis=-1)
    assert np.abs(frames - wanted).mean() < (25 if pix_fmt == "rgb8" else 4)


@pytest.mark.parametrize("pix_fmt", ["bgra", "yuva420p"])
def test_what_is_transparent_lies_on_black(tmp_path: Path, pix_fmt: str) -> None:
    frame = np.full((48, 64, 4), 200, np.uint8)
    frame[..., 3] = 255
    frame[:, :32, 3], frame[24:, :32, 3] = 0, 128
    _, frames, _ = read(clips.video(tmp_path / "a.mkv", [frame] * 2, codec="ffv1", pix_fmt=pix_fmt))
    assert frames[0, 5, 5].max() == 0
    assert frames[0, 40, 5].tolist() == pytest.approx([100] * 3, abs=3)
    assert frames[0, 5, 60].tolist() == pytest.approx([200] * 3, abs=3)


# Nothing but the picture, and the sound if asked for


SECRETS = {
    "title": "SECRETTITLE",
    "location": "+52.5200+013.4050/",
    "comment": "SECRETCOMMENT",
    "artist": "SECRETNAME",
}


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
@pytest.mark.parametrize("audio", [False, True])
def test_nothing_else_is_written(tmp_path: Path, suffix: str, audio: bool) -> None:
    metadata = {**SECRETS, "language": "deu", "handler_name": "SECRETPHONE"}
    source = clips.video(tmp_path / f"in{suffix}", sound="aac", metadata=metadata)
    assert b"SECRET" in source.read_bytes()
    output = tmp_path / f"out{suffix}"
    copy(source, output, audio=audio)
    data = output.read_bytes()
    assert b"SECRET" not in data
    assert b"+52.52" not in data
    with av.open(str(output)) as container:
        assert [s.type for s in container.streams] == ["video", "audio"][: 1 + audio]
        assert all(s.metadata.get("language", "und") == "und" for s in container.streams)
        assert not set(container.metadata) & {"title", "location", "comment", "artist", "creation_time"}
        assert container.chapters() == []


@pytest.mark.parametrize("target", ["out.mp4", "out.mkv", "out.mov"])
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("a.mp4", {}),
        ("b.mp4", {"late": Fraction(1, 3)}),
        ("c.ts", {}),
        ("d.mkv", {"rate": NTSC, "late": Fraction(1, 5)}),
        ("f.avi", {"codec": "mpeg4", "rate": 10, "sound": "libmp3lame"}),
        (
            "e.mp4",
            {"times": range(50, 130, 2), "time_base": Fraction(1, 25), "last": 2},
        ),  # the picture comes late
    ],
)
def test_sound_stays_in_time(tmp_path: Path, name: str, how: dict, target: str) -> None:
    source = clips.video(tmp_path / name, clips.pictures(40), **{"sound": "aac", **how})
    output = tmp_path / target
    assert copy(source, output, audio=True) == 40
    before, after = seen(source, "audio"), seen(output, "audio")
    assert len(before) == len(after)
    offset = seen(source)[0][0] - seen(output)[0][0]
    errors = [abs(a[0] - b[0] - offset) for a, b in zip(before, after, strict=True)]
    assert max(errors) <= Fraction(1, 900)  # Matroska counts milliseconds
    assert len(seen(output)) == 40


def test_sound_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    assert copy(clips.video(tmp_path / "a.mp4"), tmp_path / "b.mp4", audio=True) == 10
    image = tmp_path / "a.png"
    Image.fromarray(clips.picture()).save(image)
    assert copy(image, tmp_path / "c.mp4", audio=True) == 1


@pytest.mark.parametrize(
    ("codec", "target"), [("pcm_mulaw", ".mp4"), ("pcm_s16le", ".mp4"), ("flac", ".mov")]
)
def test_sound_that_does_not_fit_is_named(tmp_path: Path, codec: str, target: str) -> None:
    source = clips.video(tmp_path / "a.mov" if codec == "pcm_mulaw" else tmp_path / "a.mkv", sound=codec)
    with refuses("audio-not-supported"):
        copy(source, tmp_path / f"out{target}", audio=True)
    assert {path.stem for path in tmp_path.iterdir()} == {"a"}


def test_sound_far_from_its_picture_does_not_fill_the_memory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(decoding, "AUDIO_BYTES", 1000)
    source = clips.video(tmp_path / "a.ts", clips.pictures(50), sound="aac")
    with refuses("audio-too-far"):
        list(open_source(source, audio=True).windows())


# All or nothing


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"in.mp4"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return clips.video(tmp_path / "in.mp4", clips.noise(40))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_error_leaves_nothing(
    tmp_path: Path, source: Path, error: type[BaseException], overwrite: bool
) -> None:
    output = tmp_path / "out.mp4"
    if overwrite:
        output.write_bytes(b"old")
    reading = open_source(source)
    with pytest.raises(error), open_sink(output, reading.info, overwrite=overwrite) as sink:
        for window in reading.windows():
            sink.write(window.frames, window.times)
            assert len(list(tmp_path.glob(".veil-*.mp4"))) == 1
            raise error
    assert left(tmp_path) == ({"out.mp4"} if overwrite else set())
    assert not overwrite or output.read_bytes() == b"old"


def test_nothing_is_there_before_all_is_there(tmp_path: Path, source: Path) -> None:
    reading, output = open_source(source), tmp_path / "out.mp4"
    with open_sink(output, reading.info) as sink:
        for window in reading.windows():
            sink.write(window.frames, window.times)
            assert not output.exists()
    assert left(tmp_path) == {"out.mp4"}


def test_an_error_of_the_encoder_reaches_the_writer(tmp_path: Path, source: Path, monkeypatch) -> None:
    pictures = []

    def fail(self: object, pixels: Frames) -> None:
        pictures.append(pixels)
        if len(pictures) == 3:
            raise MemoryError("no more")

    monkeypatch.setattr(encoding.LibavSink, "_to_encoder", fail)
    monkeypatch.setattr(encoding.VideoStream, "encode", lambda self, frame: [], raising=False)
    info = open_source(source).info
    fail_at = []
    with pytest.raises((MemoryError, AttributeError)), open_sink(tmp_path / "out.mp4", info) as sink:
        for i in range(100):
            fail_at.append(i)
            sink.write(np.zeros((1, info.height, info.width, 3), np.uint8), [FrameTime(i, 1)])
    assert fail_at[-1] < 10
    assert left(tmp_path) == set()


def test_a_file_that_lacks_frames_is_not_kept(tmp_path: Path, source: Path, monkeypatch) -> None:
    info = open_source(source).info
    with (
        refuses("output-incomplete"),
        open_sink(tmp_path / "out.mp4", info) as sink,
    ):
        sink.write(np.zeros((4, info.height, info.width, 3), np.uint8), [FrameTime(i, 1) for i in range(4)])
        monkeypatch.setattr(sink, "_written", 5)
    assert left(tmp_path) == set()


def test_no_frame_makes_no_file(tmp_path: Path, source: Path) -> None:
    info = open_source(source).info
    for name in ("out.mp4", "out.png"):
        with refuses("no-frame"), open_sink(tmp_path / name, info):
            pass
    assert left(tmp_path) == set()


def test_frames_of_another_size_are_a_mistake(tmp_path: Path, source: Path) -> None:
    info = open_source(source).info
    for frames, times in ((np.zeros((1, 9, 9, 3), np.uint8), 1), (np.zeros((2, 48, 64, 3), np.uint8), 1)):
        with pytest.raises(ValueError, match="got"), open_sink(tmp_path / "out.mp4", info) as sink:
            sink.write(frames, [FrameTime(0, 1)] * times)
    assert left(tmp_path) == set()


@pytest.mark.parametrize(
    ("name", "how", "code"),
    [
        ("out.avi", {}, "output-suffix"),
        ("out", {}, "output-suffix"),
        ("out.gif", {}, "output-suffix"),
        ("out.mp4", {"codec": "ffv1"}, "output-suffix"),
        ("out.mkv", {"codec": "ffv1", "quality": 20}, "quality"),
        ("out.mp4", {"quality": 52}, "quality"),
        ("out.mp4", {"quality": -1}, "quality"),
        ("there.mp4", {}, "output-exists"),
        ("there.png", {}, "output-exists"),
        ("folder.mp4", {"overwrite": True}, "output-is-folder"),
        ("no/such/out.mp4", {}, "folder-missing"),
        ("there.mp4/out.mp4", {}, "folder-missing"),
        ("out.mp4", {"codec": "h265", "size": (7, 5)}, "not-encodable"),
    ],
)
def test_what_cannot_be_written_is_refused_at_once(tmp_path: Path, name: str, how: dict, code: str) -> None:
    (tmp_path / "there.mp4").write_bytes(b"old")
    (tmp_path / "there.png").write_bytes(b"old")
    (tmp_path / "folder.mp4").mkdir()
    before = left(tmp_path)
    width, height = how.pop("size", (64, 48))
    with refuses(code) as caught:
        open_sink(tmp_path / name, VideoInfo(width, height, Fraction(25)), **how)
    assert "\n" not in str(caught.value)
    assert left(tmp_path) == before
    assert (tmp_path / "there.mp4").read_bytes() == b"old"


def test_overwriting_replaces(tmp_path: Path, source: Path) -> None:
    (tmp_path / "out.mp4").write_bytes(b"old")
    copy(source, tmp_path / "out.mp4", overwrite=True)
    assert len(seen(tmp_path / "out.mp4")) == 40


def test_strange_metadata(tmp_path: Path) -> None:
    path = clips.video(tmp_path / "in.mkv", metadata={"title": "TITLE"})
    path.write_bytes(path.read_bytes().replace(b"TITLE", b"T\xe4TLE"))
    assert copy(path, tmp_path / "out.mkv") == 10


def test_strange_names(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = clips.video(tmp_path / "in.mp4").rename("a:b %03d é.mp4")
    assert copy("a:b %03d é.mp4", Path("c:d %03d.mp4")) == 10
    long = tmp_path / ("x" * 250 + ".mp4")
    assert copy(path, long) == 10


def python(code: str, *arguments: object, **how) -> subprocess.CompletedProcess[str]:
    """Run a script of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=60, check=False, **how
    )


COPY = """
    import sys
    from pathlib import Path
    from veil.core import VeilError
    from veil.media.sinks import open_sink
    from veil.media.sources import open_source

    def copy(start=lambda: None, again=1):
        source = open_source(sys.argv[1])
        windows = list(source.windows())
        start()
        shift = windows[-1].times[-1].pts + 1
        with open_sink(Path(sys.argv[2]), source.info, quality=0) as sink:
            for turn in range(again):
                for window in windows:
                    sink.write(window.frames, [t._replace(pts=t.pts + turn * shift) for t in window.times])
                    print("window", flush=True)
"""


def test_a_full_disk_leaves_nothing(tmp_path: Path, source: Path) -> None:
    script = (
        COPY
        + """
    import resource
    try:
        copy(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)), 20)
    except VeilError as error:
        print(error.code)
    """
    )
    done = python(script, source, tmp_path / "out.mp4")
    assert done.stderr == ""
    assert done.returncode == 0
    assert done.stdout.split()[-1] == "unwritable"
    assert left(tmp_path) == set()


def test_a_killed_writer_leaves_no_file_of_that_name(tmp_path: Path, source: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(COPY + "\n    copy(again=100_000)"),
        source,
        tmp_path / "out.mp4",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (tmp_path / "out.mp4").exists()
    assert all(name.startswith(".veil-") for name in left(tmp_path))


def test_what_is_forbidden_is_refused(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp())  # pytest's folders are closed to others
    clips.video(folder / "in.mp4").chmod(0o000)
    clips.video(folder / "open.mp4")
    folder.chmod(0o555)
    script = """
        import os, sys
        from contextlib import suppress
        from pathlib import Path
        from veil.core import VeilError
        from veil.media.sinks import open_sink
        from veil.media.sources import open_source
        folder, spare = Path(sys.argv[1]), Path(sys.argv[2])
        info = open_source(folder / "open.mp4").info
        for name in ("out.mp4", "out.png"):  # what is imported late must be in before the rights go
            with suppress(InterruptedError), open_sink(spare / name, info):
                raise InterruptedError
        if os.geteuid() == 0:
            os.seteuid(65534)  # root may do everything
        for action in (
            lambda: open_source(folder / "in.mp4"),
            lambda: open_sink(folder / "out.mp4", info),
            lambda: open_sink(folder / "out.png", info),
        ):
            try:
                action()
            except VeilError as error:
                print(error.code)
    """
    done = python(script, folder, tmp_path)
    folder.chmod(0o755)
    shutil.rmtree(folder)
    assert done.stderr == ""
    assert done.stdout.split() == ["unreadable", "unwritable", "unwritable"]


# Bad input


def strange(folder: Path, name: str, kind: str) -> Path:
    path = folder / name
    if kind == "folder":
        path.mkdir()
    elif kind == "cut":
        path.write_bytes(clips.shortened(clips.video(folder / "whole.mp4"), 0.5).read_bytes())
    elif kind == "sound":
        clips.sound_only(path)
    elif kind == "no frames":
        data = bytearray(clips.video(path, clips.pictures(1)).read_bytes())
        start = data.index(b"mdat") + 4
        end = data.index(b"moov") - 4
        data[start:end] = bytes(end - start)
        path.write_bytes(data)
    elif kind == "list":
        path.write_text("ffconcat version 1.0\nfile whole.ts\n")
        clips.video(folder / "whole.ts")
    elif kind != "missing":
        path.write_bytes(kind.encode())
    return path


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("a.mp4", "missing", "input-missing"),
        ("a.png", "missing", "input-missing"),
        ("a.mp4", "folder", "input-is-folder"),
        ("a.mp4", "", "input-empty"),
        ("a.jpg", "", "input-empty"),
        ("a.mp4", "just a text\n" * 100, "not-a-video"),
        ("a.txt", "just a text\n" * 100, "no-video"),
        ("a.png", "just a text\n" * 100, "not-a-picture"),
        ("a.mp4", "1\n00:00:00,000 --> 00:00:01,000\nhello\n", "no-video"),
        ("a.mp4", "list", "no-video"),
        ("a.mp4", "\0" * 5000, "not-a-video"),
        ("a.mp4", "cut", "not-a-video"),
        ("a.mp4", "sound", "no-video"),
        ("a.mp4", "no frames", "no-frame"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, name: str, kind: str, code: str) -> None:
    path = strange(tmp_path, name, kind)
    with refuses(code) as caught:
        open_source(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and message.endswith(".")
    assert ": " in message  # what is wrong: what to do
    assert "\n" not in message and "Errno" not in message


def test_a_file_does_not_send_us_elsewhere(tmp_path: Path) -> None:
    """A list of places to fetch is no video, whoever sent it; nothing in it is visited."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"tcp://127.0.0.1:{server.getsockname()[1]}/a.ts"
        text = f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{url}\n#EXT-X-ENDLIST\n"
        (tmp_path / "a.m3u8").write_text(text)
        with refuses("not-a-video"):
            open_source(tmp_path / "a.m3u8")
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()


def test_libav_prints_nothing_itself(tmp_path: Path) -> None:
    bad = clips.spoiled(clips.video(tmp_path / "in.mp4", clips.noise(30)), 12)
    script = """
        import sys
        from pathlib import Path
        from veil.core import VeilError
        from veil.media.sinks import open_sink
        from veil.media.sources import open_source
        for codec in ("h264", "h265"):
            source = open_source(sys.argv[1], salvage=True)
            output = Path(sys.argv[1]).with_name("out.mp4")
            with open_sink(output, source.info, codec=codec, overwrite=True) as sink:
                for window in source.windows():
                    sink.write(window.frames, window.times)
        for window in open_source(sys.argv[1], salvage=True).windows():
            break  # and forget the rest
    """
    done = python(script, bad)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Damage


def rest(path: Path) -> tuple[int, list[Fraction], str]:
    """With salvage: frames lost and the times of the others; without it, the error."""
    source, _, times = read(path, salvage=True)
    with refuses("damaged") as caught:
        read(path)
    with refuses("damaged"):
        copy(path, path.with_name("out.mp4"))
    assert not path.with_name("out.mp4").exists()
    return source.undecodable, times, str(caught.value)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("a.mp4", {}),
        ("a.mp4", {"codec": "libvpx-vp9", "options": {"cpu-used": "8", "crf": "20", "lag-in-frames": "0"}}),
        ("a.mkv", {"codec": "libx264"}),
        ("a.avi", {"codec": "mpeg4", "options": {"b": "2M"}}),
        ("a.avi", {"codec": "mjpeg", "pix_fmt": "yuvj420p"}),
        ("a.mp4", {"codec": "libx264", "options": {"bf": "0", "g": "1"}}),
    ],
)
@pytest.mark.parametrize("packet", [20, 39])
def test_a_broken_packet_is_a_lost_frame(tmp_path: Path, name: str, how: dict, packet: int) -> None:
    whole = clips.video(tmp_path / name, clips.noise(40, 128, 96), **how)
    bad = clips.spoiled(whole, packet, skip=0 if "vp9" in how.get("codec", "") else 24, length=100_000)
    times = read(whole)[2]
    lost, kept, message = rest(bad)
    assert 1 <= lost <= 3
    assert len(kept) + lost == 40
    assert set(kept) < set(times)  # no frame is repeated in place of the lost one
    assert "of 40 frames" in message and "--salvage" in message


def test_a_broken_frame_takes_no_other_along(tmp_path: Path) -> None:
    whole = clips.video(tmp_path / "a.mp4", clips.noise(40), options={"bf": "0", "g": "1"})
    for packet in (37, 38, 39):
        source, frames, _ = read(clips.spoiled(whole, packet, skip=4, length=100_000), salvage=True)
        assert (len(frames), source.undecodable) == (39, 1)


def test_salvaged_frames_are_the_right_ones(tmp_path: Path) -> None:
    whole = clips.video(tmp_path / "a.mp4", clips.noise(40), options={"bf": "0", "g": "1", "crf": "5"})
    bad = clips.spoiled(whole, 20)
    _, frames, times = read(whole)
    _, kept, when = read(bad, salvage=True)
    assert len(kept) < 40
    for frame, second in zip(kept, when, strict=True):
        assert (frame == frames[times.index(second)]).all()


@pytest.mark.parametrize(
    ("name", "how", "exact"),
    [
        ("a.mp4", {"container_options": {"movflags": "faststart"}}, True),
        (
            "a.mp4",
            {"container_options": {"movflags": "frag_keyframe+empty_moov"}, "options": {"g": "60"}},
            False,
        ),
        ("a.avi", {"codec": "mpeg4", "options": {"b": "2M"}}, True),
        ("a.mkv", {}, False),
    ],
)
def test_a_missing_end_is_noticed(tmp_path: Path, name: str, how: dict, exact: bool) -> None:
    whole = clips.video(tmp_path / name, clips.noise(60, 128, 96), **how)
    lost, kept, _ = rest(clips.shortened(whole, 0.5))
    assert 2 < len(kept) < 50
    assert len(kept) + lost == 60 if exact else lost >= 5


def test_a_damaged_stream_is_noticed(tmp_path: Path) -> None:
    whole = clips.video(tmp_path / "a.ts", clips.noise(60, 128, 96))
    data = bytearray(whole.read_bytes())
    middle = len(data) // 2 // 188 * 188
    bad = tmp_path / "bad.ts"
    bad.write_bytes(data[:middle] + data[middle + 188 * 5 :])
    lost, kept, _ = rest(bad)
    assert lost >= 1 and len(kept) + lost <= 60


def unharmed(path: Path, count: int | None = None) -> None:
    source, frames, _ = read(path)
    assert source.undecodable == 0
    assert count is None or len(frames) == count


@pytest.mark.parametrize(
    ("name", "how"),
    [
        (
            "alt.webm",
            {"codec": "libvpx", "options": {"auto-alt-ref": "1", "lag-in-frames": "16", "b": "200k"}},
        ),
        (
            "alt9.webm",
            {"codec": "libvpx-vp9", "options": {"lag-in-frames": "16", "cpu-used": "8", "b": "200k"}},
        ),
        ("fields.mp4", {"options": {"x264-params": "interlaced=1"}}),
        ("fields.ts", {"options": {"x264-params": "interlaced=1"}}),
        ("b.avi", {"codec": "mpeg4", "options": {"bf": "2"}}),
        ("two.ts", {"codec": "mpeg2video", "options": {"bf": "2"}}),
        ("b264.avi", {"options": {"bf": "3"}}),
        ("raw.h264", {"form": "h264"}),
        ("av1.mp4", {"codec": "libsvtav1", "options": {"preset": "12"}}),
        ("open.ts", {"codec": "libx265", "options": {"x265-params": "log-level=none:open-gop=1:keyint=20"}}),
        (
            "fragments.mp4",
            {"container_options": {"movflags": "frag_keyframe+empty_moov"}, "options": {"g": "9"}},
        ),
    ],
)
def test_sound_videos_raise_no_alarm(tmp_path: Path, name: str, how: dict) -> None:
    unharmed(clips.video(tmp_path / name, clips.noise(60, 64, 48), **how), 60)


@pytest.mark.parametrize(
    ("codec", "suffix"),
    [("libx264", ".mp4"), ("libx264", ".mkv"), ("libx265", ".mp4"), ("libx265", ".mkv"), ("libx265", ".ts")],
)
def test_a_cut_is_no_damage(tmp_path: Path, codec: str, suffix: str) -> None:
    """Trimmed without coding anew: edit lists, and pictures that lean on what was cut off."""
    options = {"libx264": {"x264-params": "open-gop=1:keyint=20:scenecut=0:bframes=3"}}.get(
        codec, {"x265-params": "log-level=none:open-gop=1:keyint=20:scenecut=0:bframes=4"}
    )
    whole = clips.video(tmp_path / "whole.mp4", clips.noise(100), codec=codec, options=options)
    part = tmp_path / f"part{suffix}"
    ffmpeg("-ss", "1.3", "-i", whole, "-c", "copy", part)
    with av.open(str(part)) as container:
        count = sum(1 for _ in container.decode(video=0))
    assert count > 50
    unharmed(part, count)
    if suffix == ".mp4":
        assert open_source(part).info.frames == count
        assert read(part)[2][0] < Fraction(1, 10)


@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
def test_a_stream_that_begins_between_key_frames_is_no_damage(tmp_path: Path, codec: str) -> None:
    keys = {"x264-params": "keyint=20:min-keyint=20:scenecut=0:bframes=0"}
    options = keys if codec == "libx264" else {"g": "20", "sc_threshold": "1000000000", "b": "2M"}
    whole = clips.video(tmp_path / "a.ts", clips.noise(60), codec=codec, options=options)
    with av.open(str(whole)) as container:
        cut = [p.pos for p in container.demux(video=0) if p.size][7]
    late = tmp_path / "late.ts"
    late.write_bytes(whole.read_bytes()[: 188 * 3] + whole.read_bytes()[cut:])  # the tables, then the middle
    unharmed(late, 40)


def test_damage_is_noticed_where_no_times_are_stated(tmp_path: Path) -> None:
    whole = clips.video(
        tmp_path / "a.h264", clips.noise(40), form="h264", options={"bf": "0", "threads": "1"}
    )
    units = whole.read_bytes().split(b"\0\0\1")  # parameter sets, then a slice for each frame
    for number in range(12, 30):  # many, because a decoder may take the remains of one slice for a picture
        units[number] = units[number][:8] + b"\xff" * (len(units[number]) - 8)
    data = b"\0\0\1".join(units)
    (tmp_path / "bad.h264").write_bytes(data)
    lost, kept, _ = rest(tmp_path / "bad.h264")
    assert lost >= 1 and len(kept) + lost <= 41


# Threads


def test_a_damaged_video_can_be_left_early(tmp_path: Path, monkeypatch) -> None:
    """Nobody waits while the rest is only counted."""
    whole = clips.video(tmp_path / "a.mp4", clips.noise(200), options={"g": "1"})
    source = open_source(clips.spoiled(whole, 20))
    counted, decode = [], decoding.LibavSource._frames_of
    monkeypatch.setattr(
        decoding.LibavSource,
        "_frames_of",
        lambda self, p: counted.append(time.sleep(0.05)) or decode(self, p),
    )
    windows = source.windows()
    next(windows)
    windows.close()  # pyright: ignore
    assert len(counted) < 150


def test_decoding_runs_ahead_only_a_little(tmp_path: Path, monkeypatch) -> None:
    converted, convert = [], decoding.LibavSource._to_rgb
    monkeypatch.setattr(
        decoding.LibavSource, "_to_rgb", lambda self, frame: converted.append(0) or convert(self, frame)
    )
    source = open_source(clips.video(tmp_path / "a.mp4", clips.pictures(200)))
    windows = source.windows()
    next(windows)
    time.sleep(0.3)
    assert len(converted) <= 16 * 3 + 1
    assert threads() == ["veil-decode"]
    windows.close()  # pyright: ignore
    assert threads() == []


def test_a_window_has_few_bytes(tmp_path: Path) -> None:
    source = open_source(
        clips.video(tmp_path / "a.mp4", clips.pictures(9, 1920, 1080), options={"preset": "ultrafast"})
    )
    assert {window.frames.nbytes <= 24 << 20 for window in source.windows()} == {True}
    windows = list(open_source(clips.video(tmp_path / "b.mp4", clips.pictures(40))).windows())
    assert [len(window.frames) for window in windows] == [16, 16, 8]


def test_a_source_is_stopped_and_closed_at_any_time(tmp_path: Path) -> None:
    path = clips.video(tmp_path / "a.mp4", clips.pictures(200))
    source = open_source(path)
    source.close()
    source = open_source(path)
    count = 0
    for window in source.windows():
        count += len(window.times)
        source.stop()
    assert count < 200
    source.close()
    source = open_source(path)
    next(iter(source.windows()))
    source.close()
    assert threads() == []
    with pytest.raises(RuntimeError, match="once"):
        next(iter(source.windows()))


def test_sink_and_source_may_be_used_from_any_thread(tmp_path: Path, source: Path) -> None:
    workers = [threading.Thread(target=copy, args=(source, tmp_path / f"out{i}.mp4")) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(len(seen(tmp_path / f"out{i}.mp4")) == 40 for i in range(3))


# Cameras and streams


@contextmanager
def stream(data: bytes, *, hang: bool) -> Iterator[str]:
    """A server that sends the data once and then ends, or hangs until it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(data)
                if hang:
                    done.wait(100)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        done.set()
        thread.join(5)


@pytest.fixture
def camera(tmp_path: Path) -> bytes:
    path = clips.video(tmp_path / "a.ts", clips.noise(60), options={"g": "10", "tune": "zerolatency"})
    return path.read_bytes()


def test_a_stream_ends_when_it_ends(tmp_path: Path, camera: bytes) -> None:
    with stream(camera, hang=False) as url:
        source = open_source(url)
        assert source.live
        windows = list(source.windows())
        assert sum(len(w.times) for w in windows) == 60
        assert all(len(w.times) == 1 for w in windows)  # seen as soon as it happens
        assert windows[0].times[0].pts == 0
        source.close()


def test_a_stream_that_begins_anywhere_and_is_damaged_is_read(camera: bytes) -> None:
    data = camera[188 * 20 : 188 * 200] + camera[188 * 203 :]
    with stream(data, hang=False) as url:
        source = open_source(url)
        count = sum(len(w.times) for w in source.windows())
        assert 30 < count < 60
        source.close()


def test_a_silent_stream_can_be_stopped(tmp_path: Path, camera: bytes, monkeypatch) -> None:
    monkeypatch.setattr(decoding, "TIMEOUT", 120.0)
    with stream(camera, hang=True) as url:
        source, count, stopped = open_source(url), 0, 0.0
        with open_sink(tmp_path / "out.mp4", source.info) as sink:
            for window in source.windows():
                sink.write(window.frames, window.times)
                count += len(window.times)
                if count == 50:  # from now on the stream is silent
                    stopped = time.monotonic()
                    threading.Timer(0.2, source.stop).start()
        assert time.monotonic() - stopped < 60  # and not the timeout
        source.close()
    assert count >= 50
    assert len(seen(tmp_path / "out.mp4")) == count


def test_a_frame_of_a_stream_does_not_wait_for_the_next(camera: bytes, monkeypatch) -> None:
    monkeypatch.setattr(decoding, "TIMEOUT", 60.0)
    with stream(camera, hang=True) as url:
        source, count = open_source(url), 0
        begin = time.monotonic()
        for _ in source.windows():
            count += 1
            if count == 58:  # of 60: libav cannot find the end of the last two before the stream ends
                source.stop()
        assert count >= 58 and time.monotonic() - begin < 50  # while the stream was open and silent
        source.close()


def test_a_stream_that_falls_silent_has_ended(camera: bytes, monkeypatch) -> None:
    monkeypatch.setattr(decoding, "TIMEOUT", 2.0)
    with stream(camera, hang=True) as url:
        begin = time.monotonic()
        source = open_source(url)
        assert sum(len(w.times) for w in source.windows()) >= 50
        source.close()
        assert time.monotonic() - begin < 60  # while the stream was open


def test_a_stream_that_never_sends_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr(decoding, "TIMEOUT", 0.3)
    with stream(b"", hang=True) as url:
        begin = time.monotonic()
        with refuses("no-stream"):
            open_source(url)
        assert time.monotonic() - begin < 60  # while the stream was open


@pytest.mark.parametrize("url", ["tcp://user:secret@127.0.0.1:9/x?token=secret", "nosuch://127.0.0.1/x"])
def test_a_stream_that_is_not_there_is_an_error(url: str) -> None:
    with refuses("no-stream") as caught:
        open_source(url)
    assert "secret" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)


def test_digits_are_a_camera_unless_a_file_has_that_name(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with refuses("no-stream"):
        open_source("987")
    clips.video(tmp_path / "in.mp4").rename("987")
    assert open_source("987").info.frames == 10
    assert open_source((tmp_path / "987").as_uri()).info.frames == 10


# Stills


def save(path: Path, image: Image.Image, **how) -> Path:
    image.save(path, **how)
    return path


@pytest.mark.parametrize("suffix", sorted(IMAGE_SUFFIXES))
def test_stills_pass_through_without_metadata(tmp_path: Path, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x010F] = "SECRETMAKER"
    exif.get_ifd(0x8825)[1] = "N"
    how = {} if suffix == ".bmp" else {"exif": exif.tobytes()}
    if suffix == ".jpg":
        how |= {"comment": b"SECRETCOMMENT", "icc_profile": b"SECRETPROFILE", "quality": 95}
    source = save(tmp_path / f"in{suffix}", Image.fromarray(clips.picture(3)), **how)
    assert suffix == ".bmp" or b"SECRET" in source.read_bytes()
    assert copy(source, tmp_path / f"out{suffix}") == 1
    assert b"SECRET" not in (tmp_path / f"out{suffix}").read_bytes()
    with Image.open(tmp_path / f"out{suffix}") as image:
        assert ".tif" in suffix or not image.getexif()  # where it is the format itself
        assert not image.getexif().get_ifd(0x8825)
        assert not {"exif", "icc_profile", "comment", "xmp"} & set(image.info)
        assert apart(np.asarray(image.convert("RGB")), clips.picture(3)) <= 12
    assert not list(tmp_path.glob(".veil-*"))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_stills_is_baked_in(tmp_path: Path, orientation: int) -> None:
    pixels = clips.picture()
    undo: Callable[[np.ndarray], np.ndarray] = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: a[::-1].transpose(1, 0, 2),
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: a[:, ::-1].transpose(1, 0, 2),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    source = save(tmp_path / "a.png", Image.fromarray(pixels), exif=exif.tobytes())
    assert (read(source)[1][0] == undo(pixels)).all()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "HSV"])
def test_stills_of_every_kind(tmp_path: Path, mode: str) -> None:
    rgb = Image.fromarray(clips.picture())
    if mode == "I;16":
        image = Image.fromarray(np.asarray(rgb.convert("L")).astype(np.uint16) * 257)
    else:
        image = rgb.convert("LA").convert("PA") if mode == "PA" else rgb.convert(mode)
    suffix = ".jpg" if mode in ("CMYK", "YCbCr") else ".png"
    kept = mode not in ("HSV", "PA")  # no file does
    pixels = read(save(tmp_path / f"a{suffix}", image))[1][0] if kept else to_rgb(image)
    grey = mode in ("1", "L", "LA", "I;16", "PA")
    wanted = np.asarray(rgb.convert("L").convert("RGB") if grey else rgb)
    assert pixels.shape == wanted.shape
    assert abs(pixels.astype(int) - wanted).mean() < {"1": 130, "P": 20, "CMYK": 5}.get(mode, 3)


def test_transparent_stills_lie_on_black(tmp_path: Path) -> None:
    pixels = np.full((8, 8, 4), 200, np.uint8)
    pixels[..., 3] = np.arange(8) * 36
    _, frames, _ = read(save(tmp_path / "a.png", Image.fromarray(pixels)))
    assert frames[0, 0, :, 0].tolist() == [round(200 * 36 * i / 255) for i in range(8)]


@pytest.mark.parametrize("suffix", [".webp", ".png", ".tiff"])
def test_more_than_one_picture_is_an_error(tmp_path: Path, suffix: str) -> None:
    pages = [Image.fromarray(p) for p in clips.pictures(3)]
    path = save(tmp_path / f"a{suffix}", pages[0], save_all=True, append_images=pages[1:])
    with refuses("several-pictures"):
        open_source(path)


def test_a_phones_jpeg_is_one_picture(tmp_path: Path) -> None:
    pages = [Image.fromarray(p) for p in clips.pictures(2)]
    save(tmp_path / "a.mpo", pages[0], save_all=True, append_images=pages[1:])
    path = (tmp_path / "a.mpo").rename(tmp_path / "a.jpg")
    assert apart(read(path)[1][0], clips.picture(0)) <= 12


def test_a_broken_still_is_an_error(tmp_path: Path) -> None:
    path = clips.shortened(save(tmp_path / "a.jpg", Image.fromarray(clips.noise(1)[0])), 0.6)
    with refuses("not-a-picture"):
        open_source(path)


def test_a_still_with_broken_metadata_is_no_traceback(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "maker"
    whole = save(tmp_path / "a.jpg", Image.fromarray(clips.picture()), exif=exif.tobytes()).read_bytes()
    start = whole.index(b"Exif")
    for at in range(start, start + 60, 3):
        (tmp_path / "b.jpg").write_bytes(whole[:at] + b"\xff\xff\xff" + whole[at + 3 :])
        try:
            assert read(tmp_path / "b.jpg")[1].size == 48 * 64 * 3
        except VeilError as error:
            assert error.code == "not-a-picture"


def test_a_still_holds_one_frame(tmp_path: Path, source: Path) -> None:
    with refuses("several-frames"):
        copy(source, tmp_path / "out.png")
    assert left(tmp_path) == set()


def test_an_error_leaves_no_still(tmp_path: Path) -> None:
    info = VideoInfo(64, 48, Fraction(1), 1, Fraction(1))
    with pytest.raises(KeyboardInterrupt), open_sink(tmp_path / "a.png", info) as sink:
        sink.write(clips.picture()[None], [FrameTime(0, 1)])
        raise KeyboardInterrupt
    assert left(tmp_path) == set()


def test_suffixes_distinguish_stills_from_videos() -> None:
    assert is_image("a/b.JPG") and is_image(Path("x.tiff")) and not is_image("a.gif")
    assert is_video("a/b.MP4") and is_video(Path("x.gif")) and not is_video("x.txt") and not is_video("x.png")
    assert not VIDEO_SUFFIXES & IMAGE_SUFFIXES
