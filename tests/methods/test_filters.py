"""Each filter against the naive loop, and regions against the pixels they must cover."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veil.core import Region, VeilError
from veil.methods import make
from veil.methods.filters import Blacken, Blur, Downsample, Mask, Pixelate
from veil.people import regions
from veil.people.detectors import Detection

RANDOM = np.random.default_rng(3).integers(0, 256, (13, 18, 3), np.uint8)


def one(anonymizer, image):
    return next(iter(anonymizer.stream([image[None]]))).frames[0]


def test_blacken():
    assert not one(Blacken(region="frame"), RANDOM).any()


def test_mask_is_the_mean():
    expected = np.rint(RANDOM.reshape(-1, 3).mean(0))
    assert np.array_equal(one(Mask(region="frame"), RANDOM), np.broadcast_to(expected, RANDOM.shape))


def test_pixelate_is_the_mean_of_blocks():
    block, out = 4, one(Pixelate(region="frame", block=4), RANDOM)
    for y in range(0, 12, block):
        for x in range(0, 16, block):
            mean = RANDOM[y : y + block, x : x + block].reshape(-1, 3).astype(float).mean(0)
            assert np.abs(out[y : y + block, x : x + block] - mean).max() <= 0.51


def test_downsample_keeps_a_constant_and_the_mean_and_loses_detail():
    flat = np.full((16, 24, 3), 77, np.uint8)
    assert np.array_equal(one(Downsample(factor=4), flat), flat)
    checks = np.indices((16, 24)).sum(0)[..., None].repeat(3, 2).astype(np.uint8) % 2 * 255
    out = one(Downsample(factor=4), checks).astype(int)
    assert np.abs(out - 128).max() <= 1


def test_blur_is_the_gaussian_of_the_papers():
    kernel, sigma = 13, 10.0
    offsets = np.arange(kernel) - kernel // 2
    weight = np.exp(-(offsets**2) / (2 * sigma**2))
    weight /= weight.sum()
    padded = np.pad(RANDOM.astype(float), ((6, 6), (6, 6), (0, 0)), mode="edge")
    expected = np.zeros(RANDOM.shape)
    for i, a in enumerate(weight):
        for j, b in enumerate(weight):
            expected += a * b * padded[i : i + RANDOM.shape[0], j : j + RANDOM.shape[1]]
    out = one(Blur(region="frame", kernel=kernel, sigma=sigma), RANDOM)
    assert np.abs(out - expected).max() < 1.5


@pytest.mark.parametrize(
    ("spec", "params"),
    [
        ("blur:weak", {"kernel": 13, "sigma": 10.0}),
        ("blur:strong", {"kernel": 21, "sigma": 10.0}),
        ("pixelate:4", {"block": 4}),
        ("pixelate:16", {"block": 16}),
        ("downsample:2x", {"factor": 2, "region": "frame"}),
        ("downsample:4x", {"factor": 4}),
        ("blur:weak,sigma=3", {"kernel": 13, "sigma": 3.0}),
    ],
)
def test_presets(spec, params):
    assert params.items() <= make(spec).params().items()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("blurr", "did you mean 'blur'"),
        ("", "no method ''"),
        ("blur:kernal=3", "did you mean 'kernel'"),
        ("blur:kernel=4", "odd"),
        ("blur:kernel=x", "kernel=x"),
        ("blur:kernel=13.5", "kernel=13.5"),
        ("blur:sigma=nan", "sigma=nan"),
        ("blur:sigma=inf", "sigma=inf"),
        ("blur:sigma=-1", "sigma=-1"),
        ("blur:mild", "weak, strong"),
        ("mask:soft", "no presets"),
        ("pixelate:block=0", "block=0"),
        ("pixelate:block=99999999999", "block="),
        ("mask:region=nose", "region=nose"),
        ("mask:margin=-0.1", "margin=-0.1"),
        ("mask:threshold=NaN", "threshold=NaN"),
    ],
)
def test_bad_specs_are_one_sentence(spec, words):
    with pytest.raises(VeilError) as error:
        make(spec)
    assert words in str(error.value) and "\n" not in str(error.value)


def covered(spec, box, shape):
    """What a filter changes of a grey image, given one region."""
    image = np.random.default_rng(0).integers(100, 200, (*shape, 3), np.uint8)
    anonymizer = make(spec)
    hidden = anonymizer._hide(image, [Region("face", box, 1.0, "detected", 0)], anonymizer.shape or "ellipse")  # type: ignore[attr-defined]
    return (hidden != image).any(-1)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(*[st.floats(-20, 60)] * 2),
    st.tuples(*[st.floats(0.1, 50)] * 2),
    st.sampled_from(["box", "ellipse"]),
)
def test_a_region_is_hidden_and_nothing_else(corner, size, shape):
    box = (*corner, corner[0] + size[0], corner[1] + size[1])
    changed = covered(f"blacken:shape={shape}", box, (40, 50))
    y, x = np.mgrid[:40, :50] + 0.5
    dx, dy = (x - (box[0] + box[2]) / 2) / (size[0] / 2), (y - (box[1] + box[3]) / 2) / (size[1] / 2)
    within = (np.abs(dx) <= 1) & (np.abs(dy) <= 1) if shape == "box" else dx**2 + dy**2 <= 1
    touched = (x + 0.5 >= box[0]) & (x - 0.5 <= box[2]) & (y + 0.5 >= box[1]) & (y - 0.5 <= box[3])
    assert changed[within].all()
    assert not changed[~touched].any()


def test_the_pixel_grid_stands_still():
    """A face that moves by a pixel is not sampled anew: that would give away more with every frame."""
    image = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    anonymizer = Pixelate(block=8, shape="box")
    hidden = [
        anonymizer._hide(image, [Region("face", (x, 9, x + 30, 40), 1, "detected", 0)], "box")
        for x in (10, 11, 12)
    ]
    assert np.array_equal(hidden[0][10:38, 14:38], hidden[1][10:38, 14:38])
    assert np.array_equal(hidden[0][10:38, 14:38], hidden[2][10:38, 14:38])


def test_noise_is_unknown_unless_it_is_seeded():
    grey = np.full((1, 64, 64, 3), 128, np.uint8)

    def out(spec: str) -> np.ndarray:
        return next(iter(make(spec).stream([grey]))).frames

    assert (out("noise") != out("noise")).mean() > 0.9
    assert np.array_equal(out("noise:seed=1"), out("noise:seed=1"))
    assert abs(out("noise:amount=0.1").astype(float).std() / 255 - 0.1) < 0.005
    assert abs(out("noise:amount=0.1").mean() - 128) < 1


@pytest.mark.parametrize(("region", "last"), [("person", 9 + 90), ("face", 9 + 5)])
def test_a_lost_track_of_a_body_is_held_and_that_of_a_face_is_not(monkeypatch, region, last):
    """Found until frame 9, in a picture that moves so slowly that everything stays within it."""

    class Found:
        local = False

        def __call__(self, image):
            return [Detection((120.0, 80.0, 200.0, 160.0), 0.9)] if image[0, 0, 0] <= 9 else []

    monkeypatch.setattr(regions, "detector", lambda *_: Found())
    scene = np.random.default_rng(0).integers(40, 220, (24, 32, 3)).repeat(10, 0).repeat(10, 1)
    frames = np.stack([np.roll(scene, t // 2, axis=1) for t in range(120)]).astype(np.uint8)
    frames[:, 0, 0, 0] = np.arange(120)
    out = np.concatenate([part.frames for part in Blacken(region=region).stream([frames])])
    hidden = [t for t, frame in enumerate(out) if (frame != frames[t]).any()]
    assert hidden == list(range(len(hidden)))
    assert abs(hidden[-1] - last) <= 3  # not every frame is looked at
