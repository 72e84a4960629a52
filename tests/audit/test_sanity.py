"""What an audit must find, and what it must not, in videos of noise with a secret planted in them.

No outcome depends on how well a training went: where an attacker has to fail, the videos do not depend on the label, and
a solved attacker (kernel ridge regression) answers; where it has to succeed, the margin is wide.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch

from veil.audit.audit_data import AuditData
from veil.audit.recognition import RecognizerSpec, TrainingBudget
from veil.audit.reconstruction import ReconstructionBudget, train_reconstructor
from veil.audit.result import Result, Row
from veil.audit.runner import run_audit
from veil.audit.suites import Suite
from veil.audit.videos import gather
from veil.core import Anonymizer, Frames, Veiled
from veil.data import Dataset, Sample

SIZE, LENGTH, VIDEOS = 32, 8, 300
SPLITS = ("train", "train", "train", "val", "test")
MARK = slice(4, 16)  # rows and columns of the mark
KERNEL = RecognizerSpec("kernel", "frames")
SUITE = Suite(
    about="as small as possible",
    size=SIZE,
    frames=LENGTH,
    videos=None,
    seeds=1,
    utility=(),
    attackers=(KERNEL,),
    budgets={
        "frames": TrainingBudget(steps=240, rounds=2, batch=24, lr=3e-3),
        "motion": TrainingBudget(steps=200, rounds=2, batch=16, lr=3e-3, clip_length=LENGTH),
        "kernel on frames": TrainingBudget(batch=48, views=2),
    },
    reconstruction=ReconstructionBudget(steps=20, batch=8, width=8),
    knowledge=("oblivious", "adaptive"),
    encodings=("8-bit",),
)


def planted(secret: str, seed: int = 0) -> Dataset:
    """Videos of three people who differ by one thing: the brightness of a mark, its stripes, or how the image sways."""
    rng = np.random.default_rng(seed)
    videos, samples = {}, []
    for index in range(VIDEOS):
        identity = int(rng.integers(3))
        image = rng.normal(120, 12, (SIZE, SIZE, 3))
        if secret == "sway":
            video = _swaying(image, (0.05, 0.17, 0.4)[identity], rng)
        else:
            video = np.repeat(image[None], LENGTH, 0) + rng.normal(0, 4, (LENGTH, SIZE, SIZE, 3))
            mark = (
                _stripes(identity, rng) if secret == "stripes" else np.full((12, 12), 30.0 * (identity - 1))
            )
            video[:, MARK, MARK] += mark[None, :, :, None]
        name = f"v{index}"
        videos[name] = np.clip(np.rint(video), 0, 255).astype(np.uint8)
        samples.append(Sample(name, SPLITS[index % 5], identity=identity))
    return Dataset(f"planted {secret}", samples, lambda sample: videos[sample.id], identities=("a", "b", "c"))


def _stripes(identity: int, rng: np.random.Generator) -> np.ndarray:
    """Lying, standing or diagonal, at a random phase: their mean image is the same."""
    y, x = np.mgrid[:12, :12]
    along = (y, x, (x + y) * np.sqrt(0.5))[identity]
    return 40 * np.sin(2 * np.pi * (along / 4 + rng.random()))


def _swaying(image: np.ndarray, pace: float, rng: np.random.Generator) -> np.ndarray:
    shifts = np.rint(5 * np.sin(2 * np.pi * (pace * np.arange(LENGTH) + rng.random()))).astype(int)
    return np.stack([np.roll(image, shift, axis=1) for shift in shifts])


class BlackMark(Anonymizer):
    """Blackens the mark."""

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        for frames in windows:
            out = frames.copy()
            out[:, MARK, MARK] = 0
            yield Veiled(out, None)

    def params(self) -> dict:
        return {}


class BlackHalf(BlackMark):
    """Blackens the mark of about half of the videos, whatever the mark is."""

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        for frames in windows:
            out = frames.copy()
            if int(frames[:, -1].sum()) % 2:
                out[:, MARK, MARK] = 0
            yield Veiled(out, None)


class Scramble(BlackMark):
    """Permutes all pixels, always in the same way."""

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        key = np.random.default_rng(1).permutation(SIZE * SIZE)
        for frames in windows:
            flat = frames.reshape(len(frames), -1, 3)[:, key]
            yield Veiled(255 - flat.reshape(frames.shape), None)


class OnlyMotion(BlackMark):
    """A fresh texture for every video, moved as the video moves: one frame of it is independent of the video."""

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        frames = np.concatenate(list(windows))
        rng = np.random.default_rng(int(frames.sum()))
        texture = rng.integers(0, 256, (SIZE, SIZE, 3)).astype(np.uint8)
        at = rng.integers(SIZE)
        grey = [frame.mean(-1).astype(np.float64) for frame in frames]
        for index, frame in enumerate(grey):
            if index:
                at += round(cv2.phaseCorrelate(grey[index - 1], frame)[0][0])
            yield Veiled(np.roll(texture, at, axis=1)[None], None)


def audited(secret: str, suite: Suite = SUITE, seed: int = 0, **methods: Anonymizer | None) -> list[Result]:
    return run_audit(methods, AuditData(planted(secret, seed)), suite, seeds=(seed,))


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def worst(result: Result) -> Row:
    row = result.headline("leakage", "identity")
    assert row is not None
    return row


def rows(result: Result) -> dict[str, Row]:
    return {f"{row.knowledge} {row.by}": row for row in result.rows}


def test_a_mark_is_found_hidden_or_half_hidden():
    """With half of the marks hidden, two thirds of the answers are right: all of one half, a third of the other."""
    black, half = audited("mark", black=BlackMark(), half=BlackHalf())
    (raw,) = (row for row in black.raw if row.by == str(KERNEL))
    assert raw.value > 0.9
    assert worst(black).at_chance, black.rows
    assert worst(black).value + 0.1 < worst(half).value < 0.85, half.rows
    assert not worst(half).at_chance


def test_the_key_of_a_scramble_is_found():
    """By correlation, in closed form: what comes back is raw video."""
    data = planted("stripes")
    raw, scrambled = (gather(data, method, size=SIZE, frames=LENGTH) for method in (None, Scramble()))
    before, after = ((videos.split("train"), videos.split("val")) for videos in (raw, scrambled))
    reconstruct = train_reconstructor(before, after, SUITE.reconstruction)
    assert reconstruct.kind == "keyed" and reconstruct.error < 2 / 255 < reconstruct.before / 10
    test = reconstruct(scrambled.split("test")).frames.float()
    assert (test - raw.split("test").frames.float()).abs().mean() < 2


@pytest.mark.slow
def test_the_reconstruction_attacker_recognizes_what_the_oblivious_one_cannot():
    """The oblivious attacker was trained on other images; reconstructed ones are nearly raw."""
    net = RecognizerSpec("small2d", "frames")
    suite = replace(SUITE, attackers=(net,), knowledge=("oblivious", "reconstruction"))
    (result,) = audited("stripes", suite, scramble=Scramble())
    found = rows(result)
    assert found[f"reconstruction {net}"].value > 0.8 > 0.6 > found[f"oblivious {net}"].value, found
    assert worst(result).knowledge == "reconstruction"


@pytest.mark.slow
def test_what_leaks_through_motion_alone_is_found():
    net = RecognizerSpec("small3d", "motion")
    (result,) = audited("sway", replace(SUITE, attackers=(KERNEL, net)), moving=OnlyMotion())
    found = rows(result)
    assert found[f"adaptive {KERNEL}"].at_chance, found
    assert found[f"adaptive {net}"].value > 0.7, found
    assert worst(result).by == str(net)
