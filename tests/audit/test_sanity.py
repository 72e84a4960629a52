"""What an audit must find, and what it must not, on the synthetic world with secrets planted in it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from veil.audit.recognition import Effort, Recognizer
from veil.audit.reconstruction import Restoring
from veil.audit.result import Result, Row
from veil.audit.runner import Data, judge
from veil.audit.suites import Suite
from veil.core import Anonymizer, Frames, Veiled
from veil.data import Dataset, Sample
from veil.data.synthetic import read as read_world
from veil.data.synthetic import render_samples
from veil.methods import make

SIZE, LENGTH, VIDEOS = 40, 8, 480
MARK = slice(4, 16)  # rows and columns where the mark lives
SUITE = Suite(
    about="as small as it can be",
    size=SIZE,
    frames=LENGTH,
    videos=None,
    seeds=1,
    uses=(),
    attackers=(Recognizer("small2d", "frames"),),
    efforts={
        "frames": Effort(steps=240, rounds=1, batch=24, lr=3e-3),
        "motion": Effort(steps=90, rounds=1, batch=16, lr=3e-3, length=LENGTH),
    },
    restoring=Restoring(steps=20, batch=8, width=8),
    knows=("raw", "adapted"),
    after=("8-bit",),
)


@pytest.fixture(scope="module")
def world() -> tuple[list[Sample], np.ndarray]:
    """Videos of the synthetic world, to plant something in."""
    samples = [replace(s, span=(0, LENGTH)) for s in read_world(count=VIDEOS, size=SIZE).samples]
    frames = np.concatenate(
        [render_samples(samples[i : i + 60], size=SIZE).numpy() for i in range(0, VIDEOS, 60)]
    )
    return samples, frames


def planted(world: tuple[list[Sample], np.ndarray], secret: str) -> Dataset:
    """The world with a secret: a striped badge (lying or standing), or a way of swaying (slow, middle, fast)."""
    samples, frames = world
    dice = np.random.default_rng(0)
    made, kept = {}, []
    for index, (sample, video) in enumerate(zip(samples, frames, strict=True)):
        plain = replace(sample, action=None, attributes=(), identity=None, groups={})
        if secret == "mark":
            answer = index % 2
            made[sample.id] = _marked(video, answer, dice)
            kept.append(replace(plain, attributes=(float(answer),)))
        else:
            answer = index % 3
            made[sample.id] = _swaying(video, (0.05, 0.17, 0.4)[answer], dice)
            kept.append(replace(plain, identity=answer))
    return Dataset(
        f"planted {secret}",
        kept,
        lambda sample: made[sample.id],
        attributes=("lying",) if secret == "mark" else (),
        identities=("slow", "middle", "fast") if secret == "sway" else (),
    )


def _marked(video: Frames, lying: int, dice: np.random.Generator) -> Frames:
    stripes = np.sin(2 * np.pi * (np.arange(12) / 4 + dice.random()))
    badge = np.broadcast_to(stripes[:, None] if lying else stripes, (12, 12)) * np.exp(dice.uniform(2, 4))
    out = video.astype(np.float32) * 0.6 + 50 + dice.normal(0, 2, video.shape)
    out[:, MARK, MARK] += badge[None, :, :, None]
    return np.clip(np.rint(out), 0, 255).astype(np.uint8)


def _swaying(video: Frames, pace: float, dice: np.random.Generator) -> Frames:
    times = np.arange(len(video))
    shifts = np.rint(4 * np.sin(2 * np.pi * (pace * times + dice.random()))).astype(int) + dice.integers(
        -4, 5
    )
    return np.stack([np.roll(frame, shift, axis=1) for frame, shift in zip(video, shifts, strict=True)])


class BlackMark(Anonymizer):
    """Blackens the place where the mark lives."""

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        for frames in windows:
            out = frames.copy()
            out[:, MARK, MARK] = 0
            yield Veiled(out, None)

    def params(self) -> dict:
        return {}


class Scramble(BlackMark):
    """Moves all pixels about, always in the same way."""

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        key = np.random.default_rng(1).permutation(SIZE * SIZE)
        for frames in windows:
            flat = frames.reshape(len(frames), -1, 3)[:, key]
            yield Veiled(255 - flat.reshape(frames.shape), None)


class OnlyMotion(BlackMark):
    """A fresh texture for every video, moved as the video moves: a frame of it says nothing."""

    def stream(self, windows: Iterable[Frames]) -> Iterator[Veiled]:
        frames = np.concatenate(list(windows))
        dice = np.random.default_rng(int(frames.sum()))
        texture = dice.integers(0, 256, (SIZE, SIZE, 3)).astype(np.uint8)
        at = dice.integers(SIZE)
        grey = [frame.mean(-1).astype(np.float64) for frame in frames]
        for index, frame in enumerate(grey):
            if index:
                at += round(cv2.phaseCorrelate(grey[index - 1], frame)[0][0])
            yield Veiled(np.roll(texture, at, axis=1)[None], None)


def audited(
    dataset: Dataset, suite: Suite = SUITE, keep: Path | None = None, **methods: Anonymizer | None
) -> list[Result]:
    torch.set_num_threads(1)
    return judge(methods, Data(dataset), suite, keep=keep)


def worst(result: Result, target: str) -> Row:
    row = result.headline("leakage", target)
    assert row is not None
    return row


def rows(result: Result) -> dict[str, Row]:
    return {f"{row.knows} {row.by}": row for row in result.rows}


@pytest.fixture(scope="module")
def marked(world) -> Dataset:
    return planted(world, "mark")


@pytest.fixture(scope="module")
def keep(tmp_path_factory) -> Path:
    """Where the recognizer of raw video is kept, so that it learns once."""
    return tmp_path_factory.mktemp("kept")


@pytest.mark.slow
def test_a_mark_is_found_gone_or_half_hidden(marked, keep):
    blur = make("blur:kernel=7,sigma=1.2,region=frame")
    black, mild = audited(marked, keep=keep, black=BlackMark(), blur=blur)
    (raw,) = (row for row in black.raw if row.by == "small2d on frames")
    assert raw.value >= 0.95 and not raw.at_chance
    assert worst(black, "attributes").at_chance, black.rows
    found = worst(mild, "attributes")
    assert worst(black, "attributes").value + 0.05 < found.value < raw.value - 0.02, (found, raw)


@pytest.mark.slow
def test_a_scramble_is_undone_by_the_restoring_attacker_alone(marked, keep):
    suite = replace(SUITE, knows=("raw", "adapted", "restoring"))
    (result,) = audited(marked, suite, keep, scramble=Scramble())
    found = rows(result)
    assert found["raw small2d on frames"].at_chance, found
    assert found["adapted small2d on frames"].at_chance, found
    assert found["restoring small2d on frames"].value >= 0.95, found
    assert worst(result, "attributes").knows == "restoring"


@pytest.mark.slow
def test_what_leaks_through_motion_alone_is_found(world):
    suite = replace(SUITE, attackers=(*SUITE.attackers, Recognizer("small3d", "motion")))
    samples, frames = world
    (result,) = audited(planted((samples[:300], frames[:300]), "sway"), suite, moving=OnlyMotion())
    found = rows(result)
    assert found["adapted small2d on frames"].at_chance, found
    assert found["adapted small3d on motion"].value > 0.75, found
    assert worst(result, "identity").by == "small3d on motion"
