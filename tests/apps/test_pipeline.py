"""The Python verb, and the promises of the path: every frame once, all or nothing."""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import clips
import veil
from veil.core import Anonymizer, Region, Target, Veiled
from veil.methods import ANONYMIZERS, make


class Probe(Anonymizer):
    """Gives frames out late and in other groups, as a method that looks ahead does; may fail or lie."""

    def __init__(self, ahead=5, fault=None):
        self.waits, self.fault = ahead, fault

    def stream(self, windows):
        waiting, given = [], 0
        for frames in windows:
            waiting += [255 - frame for frame in frames]
            while len(waiting) > self.waits:
                given += 1
                if self.fault == "breaks" and given > 8:
                    raise ValueError("broken in the middle")
                if self.fault == "doubles" and given == 8:
                    yield Veiled(np.stack([waiting[0]] * 40), None)
                yield Veiled(waiting.pop(0)[None], None)
        if self.fault != "keeps":
            yield Veiled(np.stack(waiting), None)

    def params(self):
        return {"ahead": self.waits}


@pytest.fixture
def video(tmp_path) -> Path:
    return clips.video(
        tmp_path / "in.mp4", clips.pictures(20), times=[0, 1, 5, 6, *range(9, 25)], time_base=None
    )


def times(path):
    from veil.media.sources import open_source

    source = open_source(path)
    found = [t.pts * source.info.time_base for window in source.windows() for t in window.times]
    source.close()
    return found


def test_a_report_calls_a_method_what_it_calls_itself(video, tmp_path):
    class Learned(Probe):
        @property
        def name(self):
            return "spact"

    report = veil.anonymize_video(video, tmp_path / "out.mp4", Learned(), report=tmp_path / "r.json")
    assert report.sentence() == "out.mp4: 20 frames, each changed as a whole by spact."
    assert json.loads((tmp_path / "r.json").read_text())["summary"]["method"] == "spact"
    assert all(make(name).name == name for name in ANONYMIZERS)


def test_late_frames_keep_their_times(video, tmp_path):
    seen = []
    report = veil.anonymize_video(
        video,
        tmp_path / "out.mp4",
        Probe(),
        progress=lambda done, total, message=None: seen.append((done, total)),
    )
    assert report.frames == 20 and times(tmp_path / "out.mp4") == times(video)
    assert seen[-1] == (20, 20) and [d for d, _ in seen] == sorted(d for d, _ in seen)
    assert report.bytes == (tmp_path / "out.mp4").stat().st_size


@pytest.mark.parametrize(
    ("fault", "error"), [("breaks", ValueError), ("doubles", RuntimeError), ("keeps", RuntimeError)]
)
def test_a_method_that_fails_leaves_nothing(fault, error, video, tmp_path):
    with pytest.raises(error):
        veil.anonymize_video(
            video,
            tmp_path / "out.mp4",
            Probe(fault=fault),
            report=tmp_path / "r.json",
            preview=tmp_path / "p.jpg",
        )
    assert [path.name for path in tmp_path.iterdir()] == ["in.mp4"]


def test_an_interrupt_that_a_library_swallows_still_breaks_off(video, tmp_path):
    class Swallowing(Anonymizer):
        def stream(self, windows):
            for number, frames in enumerate(windows):
                if number == 0:
                    with suppress(KeyboardInterrupt):
                        os.kill(os.getpid(), signal.SIGINT)
                yield Veiled(frames * 0, None)

        def params(self):
            return {}

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        veil.anonymize_video(video, tmp_path / "out.mp4", Swallowing())
    assert [path.name for path in tmp_path.iterdir()] == ["in.mp4"]
    assert signal.getsignal(signal.SIGINT) is handler


def test_paths_and_names_alike(video, tmp_path):
    report = veil.anonymize_video(
        str(video), str(tmp_path / "out.mkv"), "pixelate:4", region="frame", codec="ffv1"
    )
    assert (
        report.method == "pixelate"
        and report.params["block"] == 4
        and report.tracks is None
        and report.hidden == 1
    )


def test_a_still_is_a_video_of_one_frame(tmp_path):
    from PIL import Image

    from veil.apps.demo import sample

    Image.fromarray(sample(1)[0]).save(tmp_path / "in.png")
    report = veil.anonymize_video(
        tmp_path / "in.png", tmp_path / "out.png", "blacken", report=tmp_path / "r.json"
    )
    assert report.frames == 1 and report.tracks
    with Image.open(tmp_path / "out.png") as out:
        assert (np.asarray(out) == 0).all(-1).mean() > 0.03


def test_preview_shows_anonymized_frames_only(video, tmp_path):
    from PIL import Image

    veil.anonymize_video(video, tmp_path / "out.mp4", "blacken", region="frame", preview=tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    grey = pixels.max(-1).astype(int) - pixels.min(-1)
    assert grey.max() <= 3  # black pictures, white gaps and words: the video's colours are nowhere


def test_the_summary_is_read_by_people(tmp_path):
    base = {
        "output": "o.mp4",
        "method": "mask",
        "params": {"region": "face"},
        "width": 1,
        "height": 1,
        "fps": 1,
        "seconds": 1,
        "hidden": 0,
    }
    report = veil.Report(**base, frames=10, undecodable=2, tracks=1, nothing_found=[(2, 4), (9, 9)])  # type: ignore[arg-type]
    assert report.frames_without == 4
    assert "hidden in 6 of them" in report.sentence() and "2 more could not be decoded" in report.sentence()
    assert "does not mean that nothing is there" in report.sentence()


def sentence(targets: list[str], bare: list[tuple[int, int]], frames: int = 120) -> str:
    base = {"output": "out.mp4", "method": "selective", "width": 1, "height": 1, "fps": 1, "seconds": 1}
    base |= {"params": {}, "frames": frames, "undecodable": 0, "hidden": 0.231, "tracks": 0}
    return veil.Report(**base, targets=targets, chosen=True, nothing_found=bare).sentence()  # type: ignore[arg-type]


def test_the_summary_names_what_was_looked_for():
    assert sentence(["person"], []) == (
        "out.mp4: 120 frames, person hidden in every one of them by selective (23 % of the picture on average)."
    )
    assert sentence(["person"], [(0, 119)]) == (
        "out.mp4: 120 frames, NOTHING that looks like person was found in any of them: nothing was hidden. Look at it."
    )
    assert (
        sentence(["hair"], [], frames=1)
        == "out.mp4: 1 frame, hair hidden in it by selective (23 % of the picture)."
    )
    some = sentence(["a", "b", "face"], [(0, 9)])
    assert "a, b or face hidden in 110 of them by selective (23 %" in some and "the other 10" in some


def test_targets():
    assert veil.make("blacken").targets() == (Target("face"),)
    assert veil.make("blacken", region="frame").targets() == ()
    assert veil.make("selective", hide="hair+hand", also="face").targets() == (
        *(Target("hair", expected=True), Target("hand", expected=True), Target("face")),
    )
    assert veil.make("selective", hide="person", also="face").targets() == (Target("person", expected=True),)


def test_shares_count_instead_of_boxes(video, tmp_path):
    class Part(Probe):
        def stream(self, windows):
            for frames in windows:
                region = Region("a", (0, 0, 64, 48), 1.0, "detected", -1)
                yield Veiled(frames, [(region,)] * len(frames), [0.25] * len(frames))

    report = veil.anonymize_video(video, tmp_path / "out.mp4", Part(), require_match=True)
    assert report.hidden == 0.25 and report.tracks == 0 and report.regions["detected"] == 20
    assert "hidden in every one of them" in report.sentence()


def test_a_match_is_no_question_where_the_whole_frame_changes(video, tmp_path):
    report = veil.anonymize_video(video, tmp_path / "out.mp4", Probe(), require_match=True)
    assert report.tracks is None
