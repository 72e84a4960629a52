"""Selective obfuscation: nothing is left of what is hidden, its motion is, and nobody flashes up in between."""

import dataclasses
import re
import shutil
import weakref
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import pytest

import clips
import veil
from conftest import ROOT, SHARED, needs_shared
from errors import refuses
from motion_clips import texture
from veil.apps.demo import sample
from veil.core import FrameExplanation, Region
from veil.media.sinks import open_sink
from veil.media.sources import open_source
from veil.media.video import FrameTime, VideoInfo
from veil.methods import make, selective
from veil.methods.noise import CarriedNoise
from veil.nn import weights
from veil.nn.flow import Dis
from veil.people import descriptors as dense
from veil.people import templates
from veil.people.pictures import built_in
from veil.people.saliency import SaliencyMaps

RANDOM = np.random.default_rng(5)
SIZE = (72, 96)  # height, width: as small as its own grid, so that a map is a mask to the pixel
BOX = (slice(14, 58), slice(20, 76))
MASK = np.zeros(SIZE, bool)
MASK[BOX] = True
BARE = {"also": "none", "grow": 0.0, "fill": 0.0, "seed": 0}  # what is looked for alone, to the pixel
Look = Callable[[np.ndarray, tuple[int, int]], np.ndarray]


def looks(monkeypatch: pytest.MonkeyPatch, look: Look) -> None:
    """Tell the method what it sees in an image: a map on a grid."""

    def seen(self, image: np.ndarray, grid: tuple[int, int]) -> dict[str, np.ndarray]:
        return {"person": np.asarray(look(image, grid), np.float32)}

    monkeypatch.setattr(SaliencyMaps, "__call__", seen)


def through(spec: str, frames: np.ndarray, **more) -> np.ndarray:
    return np.concatenate([veiled.frames for veiled in make(spec, **more).stream([frames])])


def reported(spec: str, frames: np.ndarray, **more) -> tuple[list[tuple[Region, ...]], list[float]]:
    regions, shares = [], []
    for veiled in make(spec, **more).stream([frames]):
        assert veiled.regions is not None and veiled.shares is not None
        regions += veiled.regions
        shares += veiled.shares
    return regions, shares


def alike(a: np.ndarray, b: np.ndarray) -> float:
    """Correlation over pixels ``(…, 3)``, without the mean of each channel, which the noise's range is made of."""
    one, other = (pixels.astype(float).reshape(-1, 3) for pixels in (a, b))
    return float(np.corrcoef((one - one.mean(0)).ravel(), (other - other.mean(0)).ravel())[0, 1])


def changed(out: np.ndarray, frames: np.ndarray) -> np.ndarray:
    return (out != frames).any(-1)


def still(length: int, seed: int = 3, noise: float = 0.0) -> np.ndarray:
    """A fixed camera on a texture, with what a sensor adds to it."""
    scene = texture(*SIZE, 4.0, seed)
    each = np.random.default_rng(seed).normal(0, noise, (length, *scene.shape))
    return np.clip(np.rint(scene + each), 0, 255).astype(np.uint8)


def landscape(seed: int = 3, size: tuple[int, int] = (150, 200)) -> np.ndarray:
    """A background in which the part network sees nobody."""
    return texture(*size, 6.0, seed).astype(np.uint8)


@cache
def portrait(side: int = 80) -> np.ndarray:
    return cv2.resize(built_in("astronaut")[:400, 40:440], (side, side), interpolation=cv2.INTER_AREA).astype(
        np.uint8
    )


FACE = (slice(12, 32), slice(27, 47))  # in `portrait()`


def with_portrait(image: np.ndarray, x: int, y: int = 50) -> np.ndarray:
    out, person = image.copy(), portrait()
    out[y : y + 80, x : x + 80] = person
    return out


def face_at(x: int, y: int = 50) -> tuple[slice, slice]:
    down, across = FACE
    return slice(y + down.start, y + down.stop), slice(x + across.start, x + across.stop)


# Nothing is left


@pytest.mark.parametrize(("carry", "moves"), [("recursive", False), ("iid", True)])
def test_hard_does_not_depend_on_what_it_hides(carry, moves, monkeypatch):
    """Two videos that differ inside alone come out alike; of motion, which is meant to be shown, there is none here."""
    looks(monkeypatch, lambda image, grid: MASK)
    outside = landscape(1, SIZE)
    videos = []
    for seed in (2, 7):
        scene = texture(SIZE[0], SIZE[1] + 20, 4.0, seed).astype(np.uint8)
        frames = np.stack([outside] * 10)
        for t, frame in enumerate(frames):
            frame[MASK] = scene[:, t * moves : t * moves + SIZE[1]][MASK]
        videos.append(frames)
    chosen = {**BARE, "levels": "full", "carry": carry, "every": 1, "memory": 0.0}
    one, other = (through("selective", frames, **chosen) for frames in videos)
    assert (videos[0] != videos[1])[:, MASK].mean() > 0.9
    assert np.array_equal(one, other)
    for out, frames in zip((one, other), videos, strict=True):
        assert np.array_equal(out[:, ~MASK], frames[:, ~MASK])
        assert changed(out, frames)[:, MASK].mean() > 0.999
        assert abs(alike(out[:, MASK], frames[:, MASK])) < 0.02


def test_the_algebraic_attack_undoes_soft_but_not_hard(monkeypatch):
    """(out - s n) / (1 - s), with n known, guessed as the middle of its range, or averaged over the video."""
    looks(monkeypatch, lambda image, grid: np.where(MASK, 0.7, 0))
    frames = still(12, noise=2)
    noise = CarriedNoise("recursive", "full", 0, Dis("fast"))
    known = np.stack([noise.step(frame) for frame in frames]).astype(float)
    found = {}
    for mode in ("soft", "hard"):
        out = through("selective", frames, mode=mode, levels="full", **BARE).astype(float)
        guesses = {"known": known, "middle": 127.5, "averaged": out.mean(0), "median": np.median(out)}
        for name, noise in guesses.items():
            attacked = (out - 0.7 * noise) / (1 - 0.7)
            found[mode, name] = alike(attacked[:, MASK].mean(0), frames[0][MASK])
    assert found["soft", "known"] > 0.95 and found["soft", "middle"] > 0.15, found
    assert max(abs(r) for (mode, _), r in found.items() if mode == "hard") < 0.05, found


@pytest.mark.parametrize("carry", ["recursive", "iid", "eq4"])
@pytest.mark.parametrize("levels", ["hidden", "full"])
def test_averages_over_time_reveal_nothing(carry, levels, monkeypatch):
    looks(monkeypatch, lambda image, grid: np.where(MASK, 0.7, 0))
    frames = still(30, noise=4)
    original = frames.mean(0)[MASK]

    def recovered(**more) -> float:
        out = through("selective", frames, carry=carry, levels=levels, **BARE, **more)[:, MASK].astype(float)
        guesses = out.mean(0), np.median(out, 0), out.min(0), out.max(0), out.std(0) + 1e-3 * out[0]
        return max(abs(alike(guess, original)) for guess in guesses)

    assert recovered() < 0.1
    assert recovered(mode="soft") > 0.15  # so that a successful attack is noticed


def test_the_range_reveals_the_mean_of_what_is_hidden_and_full_does_not(monkeypatch):
    """What `levels` lets through, as described."""
    looks(monkeypatch, lambda image, grid: MASK)
    dark, bright = (np.clip(still(3) * 0.3 + add, 0, 255).astype(np.uint8) for add in (20, 150))
    means = {
        levels: [through("selective", f, levels=levels, **BARE)[:, MASK].mean() for f in (dark, bright)]
        for levels in ("hidden", "full")
    }
    assert means["hidden"][1] - means["hidden"][0] > 80 and abs(np.diff(means["full"])) < 1e-6


def test_the_seed_decides_and_without_one_nothing_does(monkeypatch):
    looks(monkeypatch, lambda image, grid: MASK)
    frames = still(4)
    free = {"also": "none", "grow": 0.0, "fill": 0.0}
    assert np.array_equal(
        through("selective:seed=7", frames, **free), through("selective:seed=7", frames, **free)
    )
    nobody_knows = make("selective", **free)
    outs = [
        *(np.concatenate([v.frames for v in nobody_knows.stream([frames])]) for _ in range(2)),
        *(through("selective", frames, **free, **more) for more in ({}, {"seed": 0}, {"seed": 1})),
    ]
    for i, one in enumerate(outs):
        assert all(abs(alike(one[0][MASK], other[0][MASK])) < 0.05 for other in outs[:i])
        assert np.array_equal(one[:, ~MASK], frames[:, ~MASK])


# Motion is left


def test_motion_survives(monkeypatch):
    """A square that moves over a background, by two pixels a frame to the right and one down."""
    background, thing = texture(150, 200, 3.0, 1), texture(70, 70, 2.0, 2)
    frames, places = [], []
    for t in range(13):
        x, y = 40 + 2 * t, 30 + t
        frames.append(background.astype(np.uint8))
        frames[-1][y : y + 70, x : x + 70] = thing
        places.append((x, y))

    def square(image, grid):
        now = next(t for t, frame in enumerate(frames) if np.array_equal(frame, image))
        (x, y), found = places[now], np.zeros(grid)
        found[y : y + 70, x : x + 70] = 1
        return found

    looks(monkeypatch, square)
    estimator, error = Dis("medium"), {}
    for carry in ("recursive", "eq4", "iid"):
        out = [
            estimator.prepare(image) for image in through("selective", np.stack(frames), carry=carry, **BARE)
        ]
        errors = []
        for t in (3, 6, 9, 11):
            forward, _ = estimator.estimate(out[t], out[t + 1])
            x, y = places[t]
            inner = forward[y + 8 : y + 62, x + 8 : x + 62]
            errors.append(np.linalg.norm(inner - np.array([2, 1]), axis=-1))
        error[carry] = np.median(errors)
    assert error["iid"] > 3 * error["recursive"] and error["eq4"] > 1.5 * error["recursive"], error


# When


def test_both_sides_of_a_cut_are_hidden():
    one = with_portrait(landscape(1), 20)
    other = np.ascontiguousarray(with_portrait(255 - landscape(8), 20)[:, ::-1])
    frames = np.stack([one] * 6 + [other] * 6 + [one])
    hidden = changed(through("selective:also=none,seed=0", frames), frames)
    left, right = face_at(20), (face_at(20)[0], slice(200 - 67, 200 - 47))
    for t in (*range(6), 12):
        assert hidden[t][left].mean() > 0.97 and hidden[t][right].mean() < 0.5, t
    for t in range(6, 12):
        assert hidden[t][right].mean() > 0.97 and hidden[t][left].mean() < 0.5, t


@pytest.mark.parametrize("speed", [0, 3])
@pytest.mark.parametrize("first", [1, 5, 7])
def test_who_appears_between_two_looks_is_hidden_from_the_first_frame(first, speed, monkeypatch):
    monkeypatch.setattr(selective, "NEW_SHARE", 1.0)  # by the next look alone
    background = landscape()
    places = {t: 30 + speed * (t - first) for t in range(first, 20)}
    frames = np.stack(
        [with_portrait(background, places[t]) if t in places else background for t in range(20)]
    )
    assert not reported("selective:also=none", background[None])[0][0]  # nobody is seen without the person
    hidden = changed(through("selective:also=none,every=8,seed=0", frames), frames)
    for t, x in places.items():
        assert hidden[t][face_at(x)].mean() > 0.97, t


@pytest.mark.parametrize("first", [4, 5, 6])
def test_who_appears_just_before_a_cut_is_hidden(first, monkeypatch):
    """The last frame of a scene is looked at, whenever the look before was."""
    monkeypatch.setattr(selective, "NEW_SHARE", 1.0)
    background, other = landscape(1), 255 - landscape(8)
    frames = np.stack(
        [background] * first
        + [with_portrait(background, 60)] * (7 - first)
        + [other, with_portrait(other, 20)]
    )
    hidden = changed(through("selective:also=none,seed=0", frames), frames)
    assert all(hidden[t][face_at(60)].mean() > 0.97 for t in range(first, 7))
    assert hidden[8][face_at(20)].mean() > 0.97  # and so is the last of the video


@pytest.mark.parametrize("length", [1, 2])
def test_who_is_there_between_two_looks_only_is_hidden(length):
    """So much comes into sight at once that the frame is looked at."""
    background = landscape()
    shown = range(5, 5 + length)
    frames = np.stack([with_portrait(background, 60) if t in shown else background for t in range(12)])
    hidden = changed(through("selective:also=none,every=8,seed=0", frames), frames)
    assert all(hidden[t][face_at(60)].mean() > 0.97 for t in shown)


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("sure", [1.0, 0.55])
@pytest.mark.parametrize("missed", ["first", "third", "last"])
def test_one_look_that_misses_leaves_no_hole(every, sure, missed, monkeypatch):
    """Neither in the frame that was looked at nor around it, however weak the map was before."""
    calls, bad = iter(range(1000)), {"first": 0, "third": 2, "last": 16 // every}[missed]
    looks(monkeypatch, lambda image, grid: MASK * (0 if next(calls) == bad else sure))
    frames = still(17, noise=2)
    hidden = changed(through("selective", frames, every=every, **BARE), frames)
    inner = hidden[:, 18:54, 24:72]
    assert inner.mean((1, 2)).min() > 0.97
    assert not hidden[:, ~cv2.dilate(MASK.astype(np.uint8), np.ones((7, 7))).astype(bool)].any()


def test_what_has_left_is_shown_again(monkeypatch):
    """Memory and what bridges a miss end: else the background would stay hidden for ever."""
    calls = iter(range(1000))
    looks(monkeypatch, lambda image, grid: MASK * (next(calls) < 3))
    frames = still(40)
    hidden = changed(through("selective", frames, every=4, **BARE), frames)
    assert hidden[:9, MASK].all() and not hidden[20:].any()


@pytest.mark.parametrize("also", ["none", "face"])
def test_what_it_holds_on_to_does_not_grow(also):
    alive: list[int] = []
    held: weakref.WeakSet = weakref.WeakSet()
    background = landscape()

    class Window(np.ndarray):
        __hash__ = object.__hash__  # type: ignore[assignment]

    def windows():
        for t in range(48):
            frame = with_portrait(background, 20 + t).view(Window)[None]
            held.add(frame.base if isinstance(frame.base, Window) else frame)
            alive.append(len(held))
            yield frame

    count = sum(len(veiled.frames) for veiled in make("selective", also=also, every=4).stream(windows()))
    assert count == 48 and max(alive[:32]) == max(alive) < 32


# Any video


@pytest.mark.parametrize("size", [(1, 1), (16, 16), (20, 400), (400, 20), (71, 97), (2, 700)])
@pytest.mark.parametrize("chosen", ["selective", "selective:hide=face+eyes,tiles=4,every=2"])
def test_any_shape(size, chosen):
    frames = RANDOM.integers(0, 256, (3, *size, 3), np.uint8)
    for length in (1, 3):
        assert through(chosen, frames[:length]).shape == (length, *size, 3)


def test_one_frame():
    frame = with_portrait(landscape(), 60)[None]
    hidden = changed(through("selective:also=none", frame), frame)
    assert hidden[0][face_at(60)].mean() > 0.97


@pytest.mark.parametrize("hide", ["person", "hair+eyes+person"])
@pytest.mark.parametrize("colour", [(0, 0, 0), (128, 128, 128), (255, 255, 255)])
def test_a_picture_of_one_colour_shows_nobody(hide, colour):
    frames = np.full((9, 60, 80, 3), colour, np.uint8)
    regions, shares = reported("selective", frames, hide=hide)
    assert not any(regions) and not any(shares)
    assert np.array_equal(through("selective", frames, hide=hide), frames)


def test_a_black_video_is_reported(tmp_path):
    black = clips.video(tmp_path / "black.mp4", [np.zeros((48, 64, 3), np.uint8)] * 6)
    report = veil.anonymize_video(black, tmp_path / "out.mp4")
    assert report.nothing_found == [(0, 5)] and report.hidden == 0
    assert "NOTHING that looks like person was found in any of them: nothing was hidden" in report.sentence()
    with refuses("nothing-found"):
        veil.anonymize_video(black, tmp_path / "other.mp4", require_match=True)


# What is named


@pytest.mark.parametrize(
    ("hide", "code"),
    [
        ("persn", "template-unknown"),
        ("clothe", "template-unknown"),
        ("face+hiar", "template-unknown"),
        ("forhead", "template-unknown"),
        ("xyzzy", "template-unknown"),
        ("+", "nothing-named"),
        ("", "nothing-named"),
    ],
)
def test_an_unknown_name_is_refused(hide, code):
    with refuses(code):
        make("selective", hide=hide)


def test_a_part_without_the_part_network_is_refused():
    with refuses("template-is-part"):
        make("selective:parts=false,hide=clothes")


def test_the_model_card_states_the_default_of_tiles():
    card = (ROOT / "docs" / "parts.md").read_text()
    stated = re.findall(r"`tiles=(\d)`, the default of\s+`selective`", card)
    chosen = make("selective")
    assert isinstance(chosen, selective.Selective) and stated and {*stated} == {str(chosen.tiles)}


def test_a_name_twice_is_one_name():
    chosen = make("selective", hide="face + hair+face")
    assert isinstance(chosen, selective.Selective) and chosen.names == ["face", "hair"]


def test_a_template_of_another_descriptor(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    badge = templates.add("badge", built_in("astronaut"), [(170, 385)])
    make("selective:hide=badge+face")
    templates._write(dataclasses.replace(badge, descriptor="dino-s8"), overwrite=True)
    with refuses("template-of-another-descriptor"):
        make("selective:hide=badge+face")
    templates._write(dataclasses.replace(badge, fingerprint="0" * 16), overwrite=True)
    with refuses("template-of-other-weights"):
        make("selective:hide=badge+face")


def test_a_descriptor_without_its_weights_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(weights.FOLDER_VARIABLE, "")
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(
        dense, "descriptor", dense.descriptor.__wrapped__
    )  # what others loaded does not count
    for spec in ("selective:hide=eyes,descriptor=dino-s8", "selective:paper"):
        with refuses("weights-missing"):
            make(spec)
    make("selective:hide=person,descriptor=dino-s8")  # nothing is compared, nothing is needed
    with refuses("descriptor-unknown"):
        make("selective:hide=eyes,descriptor=dino-s9")


# What is reported


def test_what_a_detector_finds_is_hidden_as_well(monkeypatch):
    looks(monkeypatch, lambda image, grid: np.zeros(grid))
    frames = np.stack([with_portrait(landscape(), 40)] * 6)
    bare, nothing = reported("selective:also=none", frames)
    assert not any(bare) and not any(nothing)
    found, shares = reported("selective:also=face", frames)
    assert all({region.kind for region in regions} == {"face"} for regions in found)
    hidden = changed(through("selective:also=face,seed=0", frames), frames)
    assert all(image[face_at(40)].mean() > 0.97 for image in hidden)
    assert all(0 < share < 0.3 for share in shares)


def test_shares_are_of_the_pixels_that_change():
    frames = np.stack([with_portrait(landscape(), 20 + 4 * t) for t in range(12)])
    for chosen in ("selective:seed=0", "selective:hide=hair,also=none,seed=0", "selective:hide=eyes,seed=0"):
        regions, shares = reported(chosen, frames)
        hidden = changed(through(chosen, frames), frames).mean((1, 2))
        assert all(0 < share < 1 for share in shares) and all(regions)
        assert np.abs(hidden - shares).max() < 0.005
        for each in regions:
            assert all(x0 < x1 and y0 < y1 and 0 <= score <= 1 for _, (x0, y0, x1, y1), score, *_ in each)


@pytest.mark.parametrize("every", [1, 4])
def test_explained_reports_each_frame_in_order_and_maps_where_it_looked(every):
    frames = np.stack([with_portrait(landscape(), 20 + 2 * t) for t in range(11)])
    chosen = make("selective:hide=face+hair,seed=0", every=every)
    heard: list[FrameExplanation] = []
    out = np.concatenate([v.frames for v in chosen.explain([frames[:7], frames[7:]], heard.append)])
    assert np.array_equal(out, np.concatenate([v.frames for v in chosen.stream([frames])]))
    assert np.array_equal(out, np.stack([one.frame for one in heard]))
    looked = [t for t, one in enumerate(heard) if one.maps is not None]
    assert looked == (list(range(11)) if every == 1 else [0, 4, 8, 10])
    _, shares = reported("selective:hide=face+hair,seed=0", frames, every=every)
    for one, share in zip(heard, shares, strict=True):
        assert one.hidden.min() >= 0 and one.hidden.max() <= 1
        assert (one.hidden >= 0.5).mean() == pytest.approx(share, abs=0.01)
        for name, likely in (one.maps or {}).items():
            assert name in ("face", "hair") and likely.shape == one.hidden.shape
            assert likely.min() >= 0 and 0.5 < likely.max() <= 1


# Who it is


@needs_shared
@pytest.mark.slow
def test_nobody_is_recognized(tmp_path: Path):
    """Faces that dlib's embedding knows in the original, each of them, and none in what the default method made."""
    pytest.importorskip("dlib", reason="the extra 'faces' is not installed")
    from veil.audit.gallery import read_gallery
    from veil.audit.reidentification import compare_folders
    from veil.people import faces

    with closing(open_source(SHARED / "video" / "obama_speech.mp4")) as source:
        frames, windows = [], source.windows()
        while len(frames) < 40:
            frames += list(next(windows).frames)
    frames = np.stack(frames[:40])
    height, width = frames.shape[1:3]
    with open_sink(
        tmp_path / "raw.mkv", VideoInfo(width, height, Fraction(25), 40, Fraction(1, 25)), codec="ffv1"
    ) as sink:
        sink.write(frames, [FrameTime(t, 1) for t in range(40)])
    embed = faces.FaceEmbedder()
    (tmp_path / "faces").mkdir()
    for name in ("astronaut", "biden", "obama", "obama2"):
        shutil.copy(SHARED / "faces" / f"{name}.jpg", tmp_path / "faces")
    gallery = read_gallery(tmp_path / "faces", embed)
    veil.anonymize_video(tmp_path / "raw.mkv", tmp_path / "veiled.mp4")
    found = compare_folders(tmp_path / "raw.mkv", tmp_path / "veiled.mp4", gallery, embed, every=20)
    assert found.raw.probes == found.raw.recognized >= 4 and found.raw.frames_recognized == 2
    assert found.anonymized.probes >= 4 and found.anonymized.recognized == 0 and found.unchanged == 0


def test_a_name_that_is_never_found_is_reported_and_may_be_an_error(tmp_path, monkeypatch):
    """Though something else was found, and hidden."""
    clips.video(tmp_path / "in.mp4", sample(6, (160, 120)))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    stripes = np.zeros((120, 160, 3), np.uint8)
    stripes[:, ::8] = (0, 255, 0)
    templates.add("stripes", stripes, [(80, 60)])
    wanted = "selective:hide=stripes+face,also=face,threshold=0.95"
    report = veil.anonymize_video(tmp_path / "in.mp4", tmp_path / "out.mp4", wanted)
    assert report.missing == ["stripes"] and "stripes was NEVER found" in report.sentence()
    with refuses("nothing-found"):
        veil.anonymize_video(tmp_path / "in.mp4", tmp_path / "no.mp4", wanted, require_match=True)
    assert not (tmp_path / "no.mp4").exists()
