"""Who is recognized: the rules, with coloured squares for people, and the real embedders on real pictures."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import SHARED, needs_shared
from errors import refuses
from veil.audit.gallery import Gallery, read_gallery
from veil.audit.reidentification import compare_folders, identify
from veil.core import Box, Frames
from veil.media.sinks import open_sink
from veil.media.sources import open_source
from veil.media.video import FrameTime, VideoInfo
from veil.nn import weights
from veil.people import bodies, faces
from veil.people.faces import PersonEmbedding
from veil.people.pictures import built_in

RED, GREEN, BLUE = (200, 0, 0), (0, 200, 0), (0, 0, 200)
LEFT, RIGHT, FAR = (8, 16, 24, 32), (40, 16, 56, 32), (72, 40, 88, 56)
PLACES = LEFT, RIGHT, FAR


class Squares:
    """Sees a person wherever a square begins with a white pixel, and knows people by their mean colour."""

    threshold = 0.2

    def __call__(self, image: Frames) -> list[PersonEmbedding]:
        found = [p for p in PLACES if p[1] < len(image) and image[p[1], p[0]].min() > 230]
        return self.at(image, [(float(a), float(b), float(c), float(d)) for a, b, c, d in found])

    def at(self, image: Frames, boxes) -> list[PersonEmbedding]:
        parts = [image[int(y0) + 1 : int(y1), int(x0) + 1 : int(x1)] for x0, y0, x1, y1 in boxes]
        return [
            PersonEmbedding(box, (part.mean(axis=(0, 1)) / 200).astype(np.float32))
            for box, part in zip(boxes, parts, strict=True)
        ]


def scene(*people: tuple[Box, tuple[int, int, int]], mark: bool = True, size=(96, 64)) -> Frames:
    image = np.full((size[1], size[0], 3), 90, np.uint8)
    for (x0, y0, x1, y1), colour in people:
        image[int(y0) : int(y1), int(x0) : int(x1)] = colour
        if mark:
            image[int(y0), int(x0)] = 255
    return image


def write(path: Path, frames: list[Frames]) -> Path:
    """A video that loses nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = frames[0].shape[:2]
    info = VideoInfo(width, height, Fraction(25), len(frames), Fraction(1, 25))
    with open_sink(path, info, codec="ffv1") as sink:
        sink.write(np.stack(frames), [FrameTime(i, 1) for i in range(len(frames))])
    return path


def still(path: Path, image: Frames) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)
    return path


@pytest.fixture
def stills(tmp_path: Path) -> Path:
    for name, colour in {"red": RED, "green": GREEN, "blue": BLUE}.items():
        still(tmp_path / "stills" / f"{name}.png", scene((LEFT, colour)))
    return tmp_path / "stills"


BOTH = scene((LEFT, RED), (RIGHT, GREEN))


def test_one_person_a_name_a_number_or_a_folder(tmp_path):
    names = [
        "ann.png",
        "ann2.png",
        "ann_3.png",
        "ann (4).png",
        "bo-b.png",
        "007.png",
        "cy/x.png",
        "cy/deep/y.png",
    ]
    for name in names:
        still(tmp_path / name, scene((LEFT, RED)))
    gallery = read_gallery(tmp_path, Squares())
    assert sorted(gallery.names) == ["007", "ann", "bo-b", "cy"]
    assert sorted(np.bincount(gallery.owners)) == [1, 1, 2, 4]
    assert any("ann and bo-b look alike" in note for note in gallery.notes)


def test_one_name_for_two_people_is_noted(tmp_path):
    still(tmp_path / "subject1.png", scene((LEFT, RED)))
    still(tmp_path / "subject2.png", scene((LEFT, BLUE)))
    (note,) = read_gallery(tmp_path, Squares()).notes
    assert "subject look like several people" in note


def test_a_group_is_left_out_with_a_note(stills):
    still(stills / "party.png", BOTH)
    gallery = read_gallery(stills, Squares())
    assert "party" not in gallery.names
    assert gallery.notes == ("the still party.png is left out: it shows 2 people, none much larger",)


def test_galleries_that_are_none(tmp_path):
    with refuses("not-a-folder"):
        read_gallery(tmp_path / "none", Squares())
    with refuses("no-inputs"):
        read_gallery(tmp_path, Squares())
    path = still(tmp_path / "party.png", BOTH)
    with refuses("gallery-empty"):
        read_gallery(tmp_path, Squares())
    with refuses("not-a-folder"):
        read_gallery(path, Squares())
    path = still(tmp_path / "empty.png", scene())
    with refuses("gallery-nobody"):
        read_gallery(tmp_path, Squares())
    path.write_bytes(b"no picture")
    with refuses("not-a-picture") as caught:
        read_gallery(tmp_path, Squares())
    assert "empty.png" in str(caught.value)


def test_identify_counts(stills):
    gallery = read_gallery(stills, Squares())
    pale = (160, 130, 130)  # nearest to red, but too far from anybody
    video = np.stack([BOTH, scene(), scene((LEFT, pale)), scene((RIGHT, GREEN))])
    anybody = identify([video], gallery, Squares(), every=1)
    assert (anybody.frames, anybody.frames_with_detection, anybody.probes) == (4, 3, 4)
    assert (anybody.recognized, anybody.frames_recognized, anybody.videos_recognized) == (3, 2, 1)
    assert anybody.rank1 is None and anybody.mistaken == 0
    red = identify([video], gallery, Squares(), every=1, truth={"0": "red"})
    assert (red.recognized, red.mistaken, red.frames_recognized) == (1, 2, 1)
    assert red.rank1 and (red.rank1.value, red.rank1.n) == (0.5, 4)
    assert red.rank1.chance == 1  # all probes are red
    assert "always answering red reaches 1" in red.rank1.notes
    assert identify([video], gallery, Squares(), every=3).frames == 2


def test_the_interval_draws_videos(stills):
    gallery = read_gallery(stills, Squares())
    right, wrong = np.stack([scene((LEFT, RED))] * 3), np.stack([scene((LEFT, GREEN))] * 3)
    score = identify([right, wrong], gallery, Squares(), every=1, truth={"0": "red", "1": "red"}).rank1
    assert score and score.value == 0.5 and score.interval == (0, 1) and score.better == "lower"


def test_one_name_measures_nothing():
    gallery = Gallery(("red",), np.array([[1.0, 0, 0]]), np.array([0]))
    found = identify([BOTH[None]], gallery, Squares(), truth={"0": "red"})
    assert found.rank1 and np.isnan(found.rank1.value) and "red only" in found.rank1.notes[0]
    assert found.as_dict()["rank1"]["value"] is None


def test_no_probe_is_noted(stills):
    found = identify([scene()[None]], read_gallery(stills, Squares()), Squares(), truth={"0": "red"})
    assert found.rank1 and np.isnan(found.rank1.value) and found.rank1.notes == ("there is no probe",)


@pytest.mark.parametrize(("truth", "code"), [({}, "identity-missing"), ({"0": "nobody"}, "identity-unknown")])
def test_truth_that_does_not_fit(stills, truth, code):
    with refuses(code):
        identify([BOTH[None]], read_gallery(stills, Squares()), Squares(), truth=truth)


def compared(tmp_path: Path, stills: Path, after: list[Frames], before: list[Frames] | None = None, **more):
    write(tmp_path / "raw" / "a" / "x.mkv", before or [BOTH] * len(after))
    write(tmp_path / "veiled" / "a" / "x.mkv", after)
    return compare_folders(tmp_path / "raw", tmp_path / "veiled", stills, Squares(), every=1, **more)


def test_untouched_video_leaks_all(tmp_path, stills):
    found = compared(tmp_path, stills, [BOTH] * 3)
    assert (found.unchanged, found.frames, found.changed) == (3, 3, 0)
    left = found.anonymized
    assert (left.probes, left.recognized, left.frames_recognized, left.videos_recognized) == (6, 6, 3, 1)
    assert left.rank1 and left.rank1.value == 1
    assert found.pairs[0].name == str(Path("a/x")) and found.raw.recognized == 6


def test_blackened_people_are_at_chance(tmp_path, stills):
    """Black is equally far from all three: ties count in equal parts."""
    black = scene((LEFT, (0, 0, 0)), (RIGHT, (0, 0, 0)), mark=False)
    found = compared(tmp_path, stills, [black] * 3)
    left = found.anonymized
    assert (left.frames_with_detection, left.probes, left.recognized, left.mistaken) == (0, 6, 0, 0)
    assert left.rank1 and left.rank1.value == pytest.approx(1 / 3)
    assert found.unchanged == 0 and found.changed == pytest.approx(2 * 16 * 16 / (96 * 64))
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["anonymized"]["recognized"] == 0


def test_a_detector_that_fails_flatters_nobody(tmp_path, stills):
    found = compared(tmp_path, stills, [scene((LEFT, RED), (RIGHT, GREEN), mark=False)])
    assert found.anonymized.frames_with_detection == 0 and found.anonymized.recognized == 2


def test_a_grain_that_softening_takes_away_hides_nobody(tmp_path, stills):
    class Sharp(Squares):
        """A face with a grain is of an unknown person."""

        def at(self, image: Frames, boxes) -> list[PersonEmbedding]:
            return [
                one._replace(embedding=one.embedding + (image[22:26, 14:18].std(axis=(0, 1)).max() > 60))
                for one in super().at(image, boxes)
            ]

    grain = scene((LEFT, RED), mark=False)
    grain[16:32, 8:24, 0] = np.where(np.indices((16, 16)).sum(axis=0) % 2, 255, 125)
    write(tmp_path / "raw.mkv", [scene((LEFT, RED))])
    write(tmp_path / "veiled.mkv", [grain])
    for softened, recognized in [((), 0), ((0.02, 0.06), 1)]:
        files = tmp_path / "raw.mkv", tmp_path / "veiled.mkv"
        found = compare_folders(*files, stills, Sharp(), softened=softened)
        assert found.raw.recognized == 1 and found.anonymized.recognized == recognized


def test_whom_raw_video_does_not_show_is_no_probe(tmp_path, stills):
    found = compared(tmp_path, stills, [BOTH] * 2, [scene((LEFT, (150, 150, 150)))] * 2)
    assert found.raw.probes == 2 and found.raw.recognized == 0 and found.anonymized.probes == 0
    assert "proves nothing about the tool" in found.notes[-1]


def test_another_persons_face_is_mistaken_not_recognized(tmp_path, stills):
    found = compared(tmp_path, stills, [scene((LEFT, BLUE), (RIGHT, RED))])
    left = found.anonymized
    assert (left.recognized, left.mistaken, left.frames_recognized) == (0, 2, 0)


def test_somebody_who_appears_elsewhere_is_recognized_in_the_frame(tmp_path, stills):
    found = compared(tmp_path, stills, [scene((FAR, RED)), scene((FAR, BLUE))])
    assert found.anonymized.recognized == 0 and found.anonymized.frames_recognized == 1


def test_a_small_hidden_face_in_a_large_frame_is_a_change(tmp_path, stills):
    noise = np.random.default_rng(0).integers(100, 140, (480, 640, 3), np.uint8)
    hidden, near = noise.copy(), noise.copy()
    hidden[100:108, 200:208] = 0
    near[::2, ::3] += 1
    found = compared(tmp_path, stills, [hidden, noise, near], [noise] * 3)
    assert found.unchanged == 2


def test_encoding_anew_hides_nothing(tmp_path, stills):
    from veil.apps.demo import sample

    frames = sample(8)
    write(tmp_path / "raw.mkv", list(frames))
    info = VideoInfo(frames.shape[2], frames.shape[1], Fraction(25))
    with open_sink(tmp_path / "again.mp4", info) as sink:
        sink.write(frames, [FrameTime(i * 3600, 3600) for i in range(len(frames))])
    found = compare_folders(tmp_path / "raw.mkv", tmp_path / "again.mp4", stills, Squares())
    assert found.unchanged == 8 and found.changed < 0.05


@pytest.mark.parametrize("method", ["pixelate:4", "blur:weak"])
def test_a_filter_on_a_face_leaves_no_frame_unchanged(tmp_path, stills, method):
    import veil
    from veil.apps.demo import sample

    write(tmp_path / "raw.mkv", list(sample(6)))
    veil.anonymize_video(tmp_path / "raw.mkv", tmp_path / "veiled.mp4", method)
    found = compare_folders(tmp_path / "raw.mkv", tmp_path / "veiled.mp4", stills, Squares())
    assert found.unchanged == 0


def test_videos_that_are_no_pair(tmp_path, stills):
    with refuses("pair-lengths-differ") as caught:
        compared(tmp_path / "1", stills, [BOTH] * 2, [BOTH] * 4)
    assert str(caught.value).count("x.mkv") == 2
    with refuses("pair-lengths-differ"):
        compared(tmp_path / "2", stills, [BOTH] * 4, [BOTH] * 2)
    with refuses("pair-sizes-differ"):
        compared(tmp_path / "3", stills, [scene(size=(96, 72))], [BOTH])


def test_a_row_that_an_encoder_repeated_is_no_difference(tmp_path, stills):
    odd = scene((LEFT, RED), size=(95, 63))
    found = compared(tmp_path, stills, [np.pad(odd, ((0, 1), (0, 1), (0, 0)), mode="edge")], [odd])
    assert found.unchanged == 1 and (found.pairs[0].width, found.pairs[0].height) == (95, 63)


def test_pairs_by_name(tmp_path, stills):
    raw, veiled = tmp_path / "raw", tmp_path / "veiled"
    for name in ("a.mkv", "a.mov", "b/c.mkv", "d.png", ".hidden.png"):
        path = raw / name
        if path.suffix == ".mkv":
            write(path, [BOTH])
        elif path.suffix == ".mov":
            write(path.with_suffix(".mkv.mkv"), [BOTH]).rename(path)
        else:
            still(path, BOTH)
    for name in ("a.mkv.mkv", "a.mov.mkv", "b/c.mkv"):
        write(veiled / name, [BOTH])
    still(veiled / "d.png", BOTH)
    (veiled / "report.json").write_text("{}")
    done = []
    found = compare_folders(raw, veiled, stills, Squares(), progress=lambda *now: done.append(now))
    assert [pair.name for pair in found.pairs] == ["a.mkv", "a.mov", "d", str(Path("b/c"))]
    assert done[-1] == (8, 8)
    one = compare_folders(raw / "a.mkv", veiled / "b" / "c.mkv", stills, Squares())
    assert len(one.pairs) == 1


def test_a_preview_beside_the_videos_is_nobodys_pair(tmp_path, stills):
    still(tmp_path / "veiled" / "preview.jpg", BOTH)
    assert len(compared(tmp_path, stills, [BOTH]).pairs) == 1


def test_names_without_a_partner_are_listed(tmp_path, stills):
    for i in range(5):
        write(tmp_path / "raw" / f"v{i}.mkv", [BOTH])
    with refuses("no-inputs"):
        (tmp_path / "veiled").mkdir()
        compare_folders(tmp_path / "raw", tmp_path / "veiled", stills, Squares())
    write(tmp_path / "veiled" / "v4.mkv", [BOTH])
    for first, second in (("raw", "veiled"), ("veiled", "raw")):
        with refuses("pair-missing") as caught:
            compare_folders(tmp_path / first, tmp_path / second, stills, Squares())
        named = [i for i in range(5) if f"v{i}.mkv" in str(caught.value)]
        assert named == [0, 1, 2]  # the first three of four


def test_two_files_for_one_name(tmp_path, stills):
    write(tmp_path / "raw" / "a.mkv", [BOTH])
    write(tmp_path / "veiled" / "a.mkv", [BOTH])
    (tmp_path / "veiled" / "a.mp4").write_bytes(b"x")
    with refuses("pair-ambiguous"):
        compare_folders(tmp_path / "raw", tmp_path / "veiled", stills, Squares())


def test_an_unreadable_video_is_named(tmp_path, stills):
    write(tmp_path / "raw" / "a.mkv", [BOTH])
    (tmp_path / "veiled").mkdir()
    (tmp_path / "veiled" / "a.mp4").write_bytes(b"no video")
    with refuses("not-a-video") as caught:
        compare_folders(tmp_path / "raw", tmp_path / "veiled", stills, Squares())
    assert "a.mp4" in str(caught.value)


def test_every_must_be_one_or_more(tmp_path, stills):
    with refuses("every-invalid"):
        compare_folders(tmp_path, tmp_path, stills, Squares(), every=0)


def test_without_dlib_one_sentence_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dlib", None)
    with refuses("extra-missing"):
        faces.FaceEmbedder()


@pytest.fixture(scope="module")
def embedder() -> faces.FaceEmbedder:
    pytest.importorskip("dlib", reason="the extra 'faces' is not installed")
    return faces.FaceEmbedder()


@pytest.fixture
def astronaut(tmp_path: Path) -> Path:
    still(tmp_path / "people" / "eileen.png", built_in("astronaut"))
    return tmp_path / "people"


def test_without_its_weights_one_sentence_names_what_to_install(embedder, monkeypatch):
    monkeypatch.setattr(faces, "_MODELS", ("none.dat", "none.dat"))
    with refuses("extra-missing"):
        faces.FaceEmbedder()


def test_the_astronaut_is_recognized_until_she_is_blackened(embedder, astronaut, tmp_path):
    import veil
    from veil.apps.demo import sample

    gallery = read_gallery(astronaut, embedder)
    assert gallery.names == ("eileen",) and gallery.embeddings.shape == (1, 128)
    frames = sample(6)
    raw = identify([frames], gallery, embedder, every=2)
    assert raw.frames == raw.frames_recognized == 3
    write(tmp_path / "raw.mkv", list(frames))
    veil.anonymize_video(tmp_path / "raw.mkv", tmp_path / "veiled.mp4", "blacken")
    found = compare_folders(tmp_path / "raw.mkv", tmp_path / "veiled.mp4", gallery, embedder, every=3)
    assert found.anonymized.probes >= 2 and found.anonymized.recognized == 0 and found.unchanged == 0


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (40, 300)])
def test_any_size_of_picture_and_any_place(embedder, shape):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    embedder(image)
    places = [(0.0, 0.0, 1.0, 1.0), (-5.0, -5.0, 4.0, 4.0), (300.0, 40.0, 310.0, 60.0)]
    assert [one.embedding.shape for one in embedder.at(image, places)] == [(128,)] * 3


@needs_shared
@pytest.mark.slow
def test_two_presidents(embedder, tmp_path):
    import veil

    gallery = read_gallery(SHARED / "faces", embedder)
    assert gallery.names == ("astronaut", "biden", "obama")
    assert gallery.notes == ("the still t1.jpg is left out: it shows 6 people, none much larger",)
    with closing(open_source(SHARED / "video" / "obama_speech.mp4")) as source:
        raw = write(tmp_path / "raw.mkv", list(next(source.windows()).frames[:8]))
    veil.anonymize_video(raw, tmp_path / "veiled.mp4", "blacken")
    found = compare_folders(raw, tmp_path / "veiled.mp4", gallery, embedder, every=4)
    assert (found.raw.frames, found.raw.probes, found.raw.recognized) == (2, 4, 4)
    assert (found.anonymized.probes, found.anonymized.recognized) == (4, 0)


@needs_shared
def test_bodies_are_nearer_to_themselves(monkeypatch):
    monkeypatch.setenv(weights.FOLDER_VARIABLE, str(SHARED / "weights"))
    embed = bodies.BodyEmbedder(SHARED / "weights" / "osnet_x0_25_msmt17.onnx")
    with closing(open_source(SHARED / "video" / "vtest.avi")) as source:
        frames = next(source.windows()).frames
    first, later = embed(frames[0]), embed(frames[2])
    assert len(first) == len(later) >= 3 and first[0].embedding.shape == (512,)
    apart = np.array([[np.linalg.norm(a.embedding - b.embedding) for b in later] for a in first])
    moved = np.array([[np.abs(np.subtract(a.box, b.box)).max() for b in later] for a in first])
    assert (apart.argmin(axis=1) == moved.argmin(axis=1)).all(), "whoever is nearest in place is so in looks"
    assert ((apart < embed.threshold).sum(axis=1) == 1).all()


def test_a_body_file_that_is_absent_or_another(tmp_path):
    with refuses("weights-missing"):
        bodies.BodyEmbedder(tmp_path / "none.onnx")
    with refuses("weights-of-another-network"):
        bodies.BodyEmbedder(weights.find("centerface"))


def test_without_body_weights_one_sentence_names_what_to_do(tmp_path, monkeypatch):
    entry = weights.WeightsFile(
        "osnet.onnx", "00", 1, "MIT", "distinguishes bodies", url="https://example.org"
    )
    monkeypatch.setitem(weights.WEIGHTS, bodies.OSNET, entry)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(weights.FOLDER_VARIABLE, raising=False)
    with refuses("weights-missing") as caught:
        bodies.BodyEmbedder()
    assert bodies.OSNET in str(caught.value)
