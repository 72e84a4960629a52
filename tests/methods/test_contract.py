"""Laws that hold for every registered anonymizer: on whole frames, on faces, and on what is named."""

from functools import cache

import numpy as np
import pytest
import torch

from veil.apps.demo import sample
from veil.core import Anonymizer, to_clip, to_frames
from veil.methods import ANONYMIZERS, make, parameters

# Noise keeps the laws only once its seed is fixed: else nobody, the same method included, can draw it again.
SEED = {
    name: ",seed=0" * any(p.name == "seed" for p in parameters(kind)) for name, kind in ANONYMIZERS.items()
}
FILTERS = [name for name, kind in ANONYMIZERS.items() if any(p.name == "region" for p in parameters(kind))]
SPECS = [f"{name}:region={region}{SEED[name]}" for name in FILTERS for region in ("frame", "face")]
SPECS += [
    "prototypes:skip=1",
    "selective:hide=person,also=none,seed=0",
    "selective:hide=face+hair,seed=0,mode=soft",
    "selective:hide=eyes,also=face,seed=0,target=true,every=2",
]


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    return sample(length=22, size=(96, 72))


def whole(anonymizer: Anonymizer, frames: np.ndarray, lengths: tuple[int, ...]) -> np.ndarray:
    windows, at = [], 0
    for length in lengths:
        windows.append(frames[at : at + length])
        at += length
    assert at == len(frames)
    return np.concatenate([veiled.frames for veiled in anonymizer.stream(windows)])


def test_no_anonymizer_is_left_out():
    assert {spec.partition(":")[0] for spec in SPECS} == set(ANONYMIZERS)


@pytest.fixture(scope="module")
def veiled(frames):
    """What a fresh anonymizer makes of the frames in one window, made once: the same for all laws."""
    return cache(lambda spec: whole(make(spec), frames, (22,)))


@pytest.mark.parametrize("spec", SPECS)
def test_keeps_shape_and_type_and_leaves_the_input_alone(spec, frames):
    before = frames.copy()
    after = whole(make(spec), frames, (22,))
    assert after.shape == frames.shape and after.dtype == np.uint8
    assert np.array_equal(before, frames)
    assert not np.shares_memory(after, frames)
    assert all((a != b).any() for a, b in zip(after, frames, strict=True))  # every frame is changed


@pytest.mark.parametrize("spec", SPECS)
def test_windows_make_no_difference(spec, frames, veiled):
    for lengths in ((1,) * 22, (16, 6), (3, 19)):
        assert np.array_equal(whole(make(spec), frames, lengths), veiled(spec))


@pytest.mark.parametrize("spec", SPECS)
def test_is_rebuilt_from_its_params(spec, frames, veiled):
    anonymizer = make(spec)
    again = type(anonymizer)(**anonymizer.params())
    assert np.array_equal(whole(again, frames, (22,)), veiled(spec))


@pytest.mark.parametrize("spec", SPECS)
def test_a_video_does_not_depend_on_its_neighbours(spec, frames, veiled):
    clip = torch.stack([to_clip(frames), to_clip(frames[:, :, ::-1])])
    anonymizer = make(spec)
    both = anonymizer(clip)
    assert both.shape == clip.shape and both.min() >= 0 and both.max() <= 1
    assert np.array_equal(to_frames(both[0]), veiled(spec))
    assert torch.equal(both[1:], anonymizer(clip[1:]))


@pytest.mark.parametrize("spec", SPECS)
def test_one_generator_serves_one_video(spec, frames, veiled):
    """Two videos that go through one anonymizer at the same time do not meet."""
    anonymizer = make(spec)
    other = frames[::-1].copy()
    first, second = anonymizer.stream([f[None] for f in frames]), anonymizer.stream([f[None] for f in other])
    mixed = [part for pair in zip(first, second, strict=True) for part in pair]
    assert np.array_equal(np.concatenate([v.frames for v in mixed[0::2]]), veiled(spec))
    assert np.array_equal(np.concatenate([v.frames for v in mixed[1::2]]), whole(anonymizer, other, (22,)))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("size", [(1, 1), (5, 7), (33, 2)])
def test_any_size(spec, size):
    frames = np.random.default_rng(0).integers(0, 256, (2, *size, 3), np.uint8)
    assert whole(make(spec), frames, (2,)).shape == frames.shape


def test_no_video_gives_nothing():
    assert list(make("blacken").stream([])) == []
