"""Why a video came out as it did: what the folder holds, that nothing raw gets into it, and all or nothing."""

import csv
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

import clips
import veil
from errors import refuses
from veil.apps.explain import ExplanationFolder
from veil.core import Anonymizer, FrameExplanation, Region, Target, Veiled

FIXED = ["combined.png", "coverage.csv", "coverage.png", "sheet.png"]
RED, BLUE = (255, 0, 0), (0, 0, 255)


class Explaining(Anonymizer):
    """Paints every frame blue and explains it, late; looks at every third frame only."""

    def __init__(self, names=("hair", "face"), breaks=99, match=True):
        self.names, self.breaks, self.match = names, breaks, match

    def stream(self, windows):
        return self.explain(windows, lambda _: None)

    def explain(self, windows, on_frame):
        number, waiting = 0, []
        for frames in windows:
            waiting += list(frames)
            while len(waiting) > 2:
                yield self._one(waiting.pop(0), number, on_frame)
                number += 1
        for frame in waiting:
            yield self._one(frame, number, on_frame)
            number += 1

    def _one(self, frame, number, on_frame):
        if number == self.breaks:
            raise ValueError("broken in the middle")
        blue = np.broadcast_to(np.array(BLUE, np.uint8), frame.shape)
        hidden = np.zeros((6, 8), np.float32)
        hidden[: number % 7 if self.match else 0] = 0.5
        maps = {name: np.full((3, 4), 0.25 * k, np.float32) for k, name in enumerate(self.names)}
        on_frame(FrameExplanation(blue, hidden, maps if number % 3 == 0 else None))
        region = Region("+".join(self.names), (0, 0, 2, 2), 1.0, "detected", -1, tuple(self.names))
        return Veiled(blue[None], [(region,) if self.match else ()], [float((hidden >= 0.5).mean())])

    def targets(self):
        return tuple(Target(name, expected=True) for name in self.names)

    def params(self):
        return {"hide": "+".join(self.names), "also": "none"}


@pytest.fixture
def red(tmp_path) -> Path:
    return clips.video(tmp_path / "in.mp4", [np.full((48, 64, 3), RED, np.uint8)] * 20)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture.convert("RGB")).astype(int)


def explained(red, tmp_path, anonymizer=None, **more):
    return veil.anonymize_video(
        red, tmp_path / "out.mp4", anonymizer or Explaining(), explain=tmp_path / "why", **more
    )


def test_the_folder_holds_pictures_of_everything_looked_for(red, tmp_path):
    explained(red, tmp_path)
    folder = tmp_path / "why"
    assert names(folder) == sorted([*FIXED, "face.png", "hair.png"])
    for file in folder.glob("*.png"):
        assert min(pixels(file).shape[:2]) > 200
    assert names(tmp_path) == ["in.mp4", "out.mp4", "why"]


def test_coverage_holds_every_frame_at_its_time(red, tmp_path):
    report = explained(red, tmp_path)
    with (tmp_path / "why" / "coverage.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["frame"]) for row in rows] == list(range(20))
    assert [float(row["seconds"]) for row in rows] == pytest.approx([i / 25 for i in range(20)])
    shares = [i % 7 / 6 for i in range(20)]
    assert [float(row["share"]) for row in rows] == pytest.approx(shares, abs=1e-4)
    assert report.hidden == pytest.approx(np.mean(shares), abs=1e-4) and report.tracks == 0


def test_nothing_raw_gets_in(tmp_path):
    """Green video, of which no picture holds any: neither the colours of the maps nor blue are green."""
    green = clips.video(tmp_path / "in.mp4", [np.full((48, 64, 3), (0, 255, 0), np.uint8)] * 20)
    explained(green, tmp_path)
    sheet = pixels(tmp_path / "why" / "sheet.png")
    assert (sheet == BLUE).all(-1).mean() > 0.1
    for file in (tmp_path / "why").glob("*.png"):
        red, blue = pixels(file)[..., 0], pixels(file)[..., 2]
        assert not (pixels(file)[..., 1] > np.maximum(red, blue) + 40).any()


def test_what_does_not_choose_has_nothing_to_explain(red, tmp_path):
    with refuses("nothing-to-explain"):
        explained(red, tmp_path, "blacken", region="frame")
    assert names(tmp_path) == ["in.mp4"]


def test_a_failure_leaves_nothing(red, tmp_path):
    with pytest.raises(ValueError, match="middle"):
        explained(red, tmp_path, Explaining(breaks=12))
    assert names(tmp_path) == ["in.mp4"]
    (tmp_path / "why").mkdir()
    with pytest.raises(ValueError, match="middle"):
        explained(red, tmp_path, Explaining(breaks=12))
    assert names(tmp_path / "why") == []


@pytest.mark.parametrize("file", ["coverage.csv", "sheet.png", "hair.png"])
def test_files_that_exist_are_kept(file, red, tmp_path):
    (tmp_path / "why").mkdir()
    (tmp_path / "why" / "other.txt").write_text("mine")
    (tmp_path / "why" / file).write_text("precious")
    with refuses("output-exists"):
        explained(red, tmp_path)
    assert names(tmp_path) == ["in.mp4", "why"] and names(tmp_path / "why") == sorted([file, "other.txt"])
    assert (tmp_path / "why" / file).read_text() == "precious"
    explained(red, tmp_path, overwrite=True)
    assert (tmp_path / "why" / file).read_bytes() != b"precious"
    assert (tmp_path / "why" / "other.txt").read_text() == "mine"


def test_places_that_cannot_be(red, tmp_path):
    (tmp_path / "file").touch()
    with refuses("output-is-file"):
        veil.anonymize_video(red, tmp_path / "out.mp4", Explaining(), explain=tmp_path / "file")
    with refuses("folder-missing"):
        veil.anonymize_video(red, tmp_path / "out.mp4", Explaining(), explain=tmp_path / "none" / "why")
    for place in (tmp_path / "out.mp4", red):
        with refuses("output-conflict"):
            veil.anonymize_video(red, tmp_path / "out.mp4", Explaining(), explain=place)
    Image.new("RGB", (32, 32), RED).save(tmp_path / "hair.png")
    with refuses("output-conflict"):  # the input would be replaced
        veil.anonymize_video(tmp_path / "hair.png", tmp_path / "o.jpg", Explaining(), explain=tmp_path)
    assert names(tmp_path) == ["file", "hair.png", "in.mp4"]


def test_any_name_is_fit_for_a_file(red, tmp_path):
    strange = ("../../etc", "sheet", "a/b", "a b", "A b", "..", "x" * 300, "Gänse")
    explained(red, tmp_path, Explaining(strange))
    found = set(names(tmp_path / "why")) - {*FIXED}
    assert found == {
        *("etc.png", "sheet-2.png", "a_b.png", "a_b-2.png", "A_b-3.png", "unnamed.png"),
        *("x" * 60 + ".png", "Gänse.png"),
    }


def test_a_still_and_a_sliver(tmp_path):
    for number, size in enumerate([(32, 32), (640, 2), (2, 640)]):
        Image.new("RGB", size, RED).save(tmp_path / "in.png")
        out, why = tmp_path / f"out{number}.png", tmp_path / f"why{number}"
        veil.anonymize_video(tmp_path / "in.png", out, Explaining(), explain=why)
        assert names(why) == sorted([*FIXED, "face.png", "hair.png"])


def test_a_long_video_takes_no_more_memory(tmp_path):
    frame, maps = np.zeros((4, 6, 3), np.uint8), {"a": np.zeros((2, 3), np.float32)}
    with ExplanationFolder(tmp_path / "why", overwrite=False) as why:
        for i in range(5000):
            hidden = np.full((1, 1), i % 2, np.float32)
            why.add(i / 25, FrameExplanation(frame, hidden, maps if i % 5 == 0 else None))
            assert len(why._kept) <= 24 and len(why._coverage._stretches) <= 1024
        times = [sample.seconds for sample in why._kept]
        assert len(times) > 12 and np.ptp(np.diff(times)) < 1e-9 and times[-1] > 180
        assert sum(stretch.frames for stretch in why._coverage._stretches) == 5000
        why.finish()
    assert len((tmp_path / "why" / "coverage.csv").read_text().splitlines()) == 5001


def test_what_is_hidden_is_outlined(tmp_path):
    hidden = np.zeros((12, 16), np.float32)
    hidden[3:9, 4:12] = 1
    with ExplanationFolder(tmp_path / "why", overwrite=False) as why:
        why.add(0, FrameExplanation(np.full((240, 320, 3), 90, np.uint8), hidden, {"face": hidden}))
        why.finish()
    seen = pixels(tmp_path / "why" / "combined.png")
    line = (seen == (0, 235, 255)).all(-1)
    ys, xs = np.nonzero(line)
    assert abs(np.ptp(ys) - 120) < 6 and abs(np.ptp(xs) - 160) < 6
    assert not (pixels(tmp_path / "why" / "face.png") == (0, 235, 255)).all(-1).any()


def test_maps_that_are_no_numbers_count_as_hidden(tmp_path):
    frame = np.zeros((24, 32, 3), np.uint8)
    with ExplanationFolder(tmp_path / "why", overwrite=False) as why:
        why.add(
            0,
            FrameExplanation(frame, np.full((2, 2), np.nan, np.float32), {"a": np.ones((2, 2), np.float32)}),
        )
        why.finish()
    assert (tmp_path / "why" / "coverage.csv").read_text().splitlines()[1] == "0,0.000000,1.0000"


def test_a_match_may_be_required(red, tmp_path):
    with refuses("nothing-found") as e:
        explained(
            red,
            tmp_path,
            Explaining(match=False),
            require_match=True,
            report=tmp_path / "r.json",
            preview=tmp_path / "p.png",
        )
    assert "in.mp4" in str(e.value) and "--hide" in str(e.value) and "--require-match" in str(e.value)
    assert names(tmp_path) == ["in.mp4"]
    report = explained(red, tmp_path, Explaining(match=False))
    assert "NOTHING that looks like hair or face was found in any" in report.sentence()
    assert explained(red, tmp_path, require_match=True, overwrite=True).frames == 20


def test_a_method_must_explain_every_frame_once(red, tmp_path):
    class Silent(Explaining):
        def explain(self, windows, on_frame):
            return super().explain(windows, lambda _: None)

    class Chatty(Explaining):
        def explain(self, windows, on_frame):
            return super().explain(windows, lambda frame: (on_frame(frame), on_frame(frame))[0])

    for kind in (Silent, Chatty):
        with pytest.raises(RuntimeError, match=kind.__name__):
            explained(red, tmp_path, kind())
    assert names(tmp_path) == ["in.mp4"]


def test_the_maps_lie_where_the_frame_has_them(tmp_path):
    """The corner of a map is the corner of its picture."""
    maps = np.zeros((4, 4), np.float32)
    maps[0, 3] = 1
    with ExplanationFolder(tmp_path / "why", overwrite=False) as why:
        why.add(0, FrameExplanation(np.zeros((320, 320, 3), np.uint8), maps, {"a": maps}))
        why.finish()
    seen = pixels(tmp_path / "why" / "a.png")[52 : 52 + 320, 12 : 12 + 320].sum(-1).astype(np.float32)
    y, x = np.unravel_index(cv2.GaussianBlur(seen, (0, 0), 9).argmax(), seen.shape)
    assert y < 60 and x > 260
