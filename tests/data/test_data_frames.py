from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

import layouts
from errors import refuses
from veil.data import Dataset, Sample
from veil.data.frames import FrameReader, SkippedWarning, read_frames


def dataset(*samples: Sample) -> Dataset:
    return Dataset("tiny", samples, read_frames)


def video(path: Path, **more: object) -> Sample:
    return Sample(path.stem, "train", path, **more)  # pyright: ignore[reportArgumentType]


def test_a_video_comes_back_exactly_and_so_does_its_part(tmp_path: Path) -> None:
    frames = layouts.pictures(20)
    path = layouts.write_video(tmp_path / "a.mkv", frames)
    assert np.array_equal(read_frames(video(path)), frames)
    assert np.array_equal(read_frames(video(path, span=(5, 9))), frames[5:9])
    assert np.array_equal(read_frames(video(path, span=(18, 30))), frames[18:]), (
        "labels may reach past the end"
    )
    with refuses("video-too-short"):
        read_frames(video(path, span=(25, 30)))


def test_folders_stills_and_zip_files(tmp_path: Path) -> None:
    layouts.stills(tmp_path / "clip", [f"img_{place}.png" for place in range(12)])
    frames = read_frames(video(tmp_path / "clip"))
    assert frames[:, 0, 0, 0].tolist() == [10 * place for place in range(12)], "by number, not by letter"
    assert read_frames(video(tmp_path / "clip", span=(3, 5)))[:, 0, 0, 0].tolist() == [30, 40]
    layouts.stills(tmp_path / "sbu", ["depth_000001.png", "rgb_000001.png", "rgb_000002.png"])
    assert read_frames(video(tmp_path / "sbu"))[:, 0, 0, 0].tolist() == [10, 20]
    assert read_frames(video(tmp_path / "clip" / "img_3.png")).shape == (1, 24, 32, 3)
    with zipfile.ZipFile(tmp_path / "faces.zip", "w") as archive:
        archive.write(tmp_path / "clip" / "img_7.png", "inner/7.png")
    inside = tmp_path / "faces.zip" / "inner" / "7.png"
    assert read_frames(video(inside))[0, 0, 0, 0] == 70
    with refuses("image-unreadable"):
        read_frames(video(tmp_path / "faces.zip" / "gone.png"))


def test_frames_get_smaller_and_fewer(tmp_path: Path) -> None:
    path = layouts.write_video(tmp_path / "a.mkv", layouts.pictures(20, 64, 48))
    small = FrameReader(dataset(), size=24, every=3)(video(path, span=(1, 20)))
    assert small.shape == (7, 24, 32, 3)
    whole = read_frames(video(path))[1::3]
    assert np.abs(small.mean((1, 2)) - whole.mean((1, 2))).max() < 1
    assert FrameReader(dataset(), size=100)(video(path)).shape[1:3] == (48, 64), "never larger"


def test_broken_files_are_skipped_counted_and_named(tmp_path: Path) -> None:
    good = [video(layouts.write_video(tmp_path / f"{letter}.mp4")) for letter in "abc"]
    cut = layouts.write_video(tmp_path / "cut.mp4")
    cut.write_bytes(cut.read_bytes()[:600])
    layouts.text(tmp_path / "text.mp4", "no video")
    layouts.touch(tmp_path / "empty.avi")
    bad = [video(tmp_path / name) for name in ("cut.mp4", "text.mp4", "empty.avi", "gone.mp4")]
    mixed = [good[0], *bad[:2], good[1], *bad[2:], good[2]]
    reader = FrameReader(dataset(), workers=2)
    with pytest.warns(
        SkippedWarning, match=r"4 of 7 samples were skipped: .*cut\.mp4.*text\.mp4.*empty\.avi.*gone\.mp4"
    ):
        found = list(reader.each(mixed))
    assert [read.sample.id for read in found] == ["a", "b", "c"]
    assert set(reader.skipped) == {"cut", "text", "empty", "gone"}
    with refuses("not-a-video") as caught:
        reader(bad[1])
    assert "text.mp4" in str(caught.value)
    with (
        pytest.warns(SkippedWarning),
        refuses("no-readable-samples"),
    ):
        list(FrameReader(dataset()).each(bad[:2]))


def test_the_cache_serves_what_did_not_change(tmp_path: Path) -> None:
    path = layouts.write_video(tmp_path / "a.mkv", layouts.pictures(20))
    decoded = 0

    def counted(sample: Sample) -> np.ndarray:
        nonlocal decoded
        decoded += 1
        return read_frames(sample)

    def read(**options: int) -> np.ndarray:
        return FrameReader(Dataset("tiny", (), counted), cache=tmp_path / "cache", **options)(video(path))

    first, second = read(), read()
    assert decoded == 1 and np.array_equal(first, second)
    assert isinstance(second, np.memmap), "only the frames that are used are read from disk"
    read(size=24)
    read(every=2)
    assert decoded == 3, "another sampling is another entry"
    layouts.write_video(path.with_name("b.mkv"), layouts.pictures(10)).replace(path)
    assert len(read()) == 10 and decoded == 4, "a file that changed is read anew"
    os.utime(path, ns=(1, 1))
    read()
    assert decoded == 5
    for entry in (tmp_path / "cache").rglob("*.npy"):
        entry.write_bytes(entry.read_bytes()[:100])
    assert len(read()) == 10 and decoded == 6, "a broken entry is made anew"
    assert not list((tmp_path / "cache").rglob(".*")), "no drafts remain"


def test_parts_of_one_video_are_decoded_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from veil.data import frames as module

    frames = layouts.pictures(30)
    path = layouts.write_video(tmp_path / "a.mkv", frames)
    opened: list[object] = []
    source = module.open_source
    monkeypatch.setattr(module, "open_source", lambda path: opened.append(path) or source(path))
    spans = [(10, 20), (0, 5), (3, 30), (25, 28)]
    samples = [Sample(f"a#{start}", "train", path, (start, end)) for start, end in spans]
    for cache in (None, tmp_path / "cache"):
        opened.clear()
        found = list(FrameReader(dataset(), cache=cache).each(samples))
        assert len(opened) == 1
        for (start, end), read in zip(spans, found, strict=True):
            assert np.array_equal(read.frames, frames[start:end])


def test_a_full_disk_is_an_error_and_no_skip(tmp_path: Path) -> None:
    path = layouts.write_video(tmp_path / "a.mp4")
    layouts.touch(tmp_path / "cache")
    with refuses("unwritable"):
        list(FrameReader(dataset(), cache=tmp_path / "cache").each([video(path)]))


def test_made_frames_need_no_file() -> None:
    made = Dataset("made", (), lambda sample: layouts.pictures(8))
    found = FrameReader(made, size=12, every=2, cache=Path("/nowhere"))(Sample("x", "train"))
    assert found.shape == (4, 12, 16, 3)
    with refuses("sample-without-file"):
        read_frames(Sample("x", "train"))
