"""The noise moves as the picture moves, is plain noise in each frame, and leaves nothing of what it covers."""

from itertools import pairwise
from typing import get_args

import cv2
import numpy as np
import pytest

from conftest import SHARED, needs_shared
from motion_clips import texture, view
from veil.methods.noise import CarriedNoise, Carry, blend
from veil.nn.flow import Grey, inconsistent

RANDOM = np.random.default_rng(1)
SCENE = texture(320, 480)
SIZE = (240, 320)
CARRIES: tuple[Carry, ...] = get_args(Carry)


def moving(x: float, y: float, length: int) -> list[np.ndarray]:
    return [view(SCENE, x * t, y * t, SIZE) for t in range(length)]


def noises(frames, *arguments, **more) -> np.ndarray:
    noise = CarriedNoise(*arguments, **{"seed": 0, **more})
    return np.stack([noise.step(frame) for frame in frames])


def displacement(before: np.ndarray, after: np.ndarray, reach: int = 16) -> tuple[int, int]:
    """The whole-pixel motion that explains the inner part of `after` best."""
    inner = before[60:180, 80:240].astype(np.float32)
    around = after[60 - reach : 180 + reach, 80 - reach : 240 + reach].astype(np.float32)
    score = cv2.matchTemplate(around, inner, cv2.TM_CCOEFF_NORMED)
    y, x = np.unravel_index(score.argmax(), score.shape)
    assert score.max() > 0.3
    return int(x) - reach, int(y) - reach


def alike(a: np.ndarray, b: np.ndarray) -> float:
    """Correlation of two pictures, over all values."""
    return float(np.corrcoef(a.reshape(-1), b.reshape(-1))[0, 1])


class Known:
    """An estimator that is given the motion, on a grid half as large as the frame."""

    def __init__(self, x: float, y: float):
        self.flow = np.full((SIZE[0] // 2, SIZE[1] // 2, 2), (x / 2, y / 2), np.float32)

    def prepare(self, image: np.ndarray) -> np.ndarray:
        return cv2.resize(image[..., 0], (SIZE[1] // 2, SIZE[0] // 2)).astype(np.uint8)

    def estimate(self, before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.flow, -self.flow


@pytest.mark.parametrize("velocity", [(0.3, 0.0), (0.04, -0.5), (3.0, 0.0), (-1.4, 0.7)])
def test_the_noise_moves_as_far_as_the_flow_to_half_a_pixel(velocity):
    frames = moving(0, 0, 11 if max(map(abs, velocity)) > 1 else 28)
    noise = noises(frames, estimator=Known(*velocity))
    for t in range(1, len(frames)):
        x, y = displacement(noise[0], noise[t], reach=32)
        assert abs(x - velocity[0] * t) < 0.51 and abs(y - velocity[1] * t) < 0.51
        shown = noise[0][60:180, 80:240]
        assert np.abs(noise[t][60 + y : 180 + y, 80 + x : 240 + x].astype(int) - shown).max() <= 1


@pytest.mark.parametrize("velocity", [(0.3, 0.0), (3.0, 0.0), (-1.4, 0.7)])
def test_the_noise_moves_as_far_as_the_picture(velocity):
    length = 22 if max(map(abs, velocity)) < 1 else 6
    noise = noises(moving(velocity[0], velocity[1], length))
    for t in (1, length // 2, length - 1):
        x, y = displacement(noise[0], noise[t])
        assert abs(x - velocity[0] * t) < 0.5 + 0.03 * t and abs(y - velocity[1] * t) < 0.5 + 0.03 * t


def test_eq4_and_the_released_code_freeze():
    frames = moving(3, 0, 5)
    for carry in CARRIES[1:3]:
        frozen = noises(frames, carry)
        assert [displacement(a, b) for a, b in pairwise(frozen[1:])] == [(0, 0)] * 3
    first, second = noises(frames[:2], "eq4")
    assert displacement(first, second) == (3, 0)
    first, second = noises(frames[:2], "released")
    assert displacement(first, second) == (-3, 0)  # the other way


def test_iid_is_new_in_each_frame_and_static_never():
    frames = moving(2, 0, 3)
    iid, static = noises(frames, "iid"), noises(frames, "static", "full")
    assert abs(alike(iid[0], iid[1])) < 0.02 and abs(alike(iid[1], iid[2])) < 0.02
    assert np.array_equal(static[0], static[1]) and np.array_equal(static[0], static[2])


@pytest.mark.parametrize("growth", [1.03, 1 / 1.03])
def test_each_frame_alone_is_plain_noise_even_when_the_camera_zooms(growth):
    frames = []
    for t in range(25):
        s = growth**t
        zoom = np.array([[s, 0, 160 - s * 240], [0, s, 120 - s * 160]], np.float32)
        frames.append(np.rint(cv2.warpAffine(SCENE, zoom, (320, 240), flags=cv2.INTER_CUBIC).clip(0, 255)))
    noise = noises([frame.astype(np.uint8) for frame in frames], "recursive", "full").astype(float)
    last = noise[-1]
    histogram = np.histogram(last, 16, (0, 256))[0] / last.size
    assert np.abs(histogram - 1 / 16).max() < 0.004  # no decay to grey, no holes
    assert abs(last.std() - 73.9) < 0.7
    for a, b in ((last[1:], last[:-1]), (last[:, 1:], last[:, :-1]), (last[..., 0], last[..., 1])):
        assert abs(alike(a, b)) < 0.015  # no smear
    codes = last.astype(np.int64) @ [65536, 256, 1]
    drawn = np.random.default_rng(0).integers(0, 1 << 24, codes.size)
    assert len(np.unique(codes)) > len(np.unique(drawn)) - 400  # no grain twice, but for chance
    assert abs(alike(last, frames[-1])) < 0.02


def test_a_cut_draws_everything_anew_and_what_is_uncovered_too():
    still = view(SCENE, 0, 0, SIZE)
    other = view(texture(320, 480, 6.0, seed=8), 0, 0, SIZE)
    noise = noises([still, still, other, other])
    assert alike(noise[0], noise[1]) > 0.99 and abs(alike(noise[1], noise[2])) < 0.02
    thing = texture(100, 80, 2.0, seed=9)
    frames = [still.copy(), still.copy()]
    frames[0][70:170, 100:180], frames[1][70:170, 112:192] = thing, thing
    before, after = noises(frames, "recursive", "full")
    assert alike(before[80:160, 110:165], after[80:160, 122:177]) > 0.8  # carried with the thing
    uncovered = after[80:160, 102:110]
    assert not any(alike(before[80:160, x : x + 8], uncovered) > 0.5 for x in range(80, 130))
    assert np.array_equal(before[:, 250:], after[:, 250:])


def test_the_range_is_that_of_the_video_and_does_not_flicker():
    frames = [
        np.clip(view(SCENE, t, 0, SIZE) * 0.5 + (40, 60, 90), 0, 255).astype(np.uint8) for t in range(3)
    ]
    pixels = np.stack(frames).reshape(-1, 3).astype(float)
    noise = noises(frames)
    for channel in range(3):
        low, high = (pixels[:, channel].mean() + sign * pixels[:, channel].std() for sign in (-1, 1))
        values = noise[..., channel]
        assert abs(values.min() - low) < 3 and abs(values.max() - high) < 3
        assert abs(values.mean() - (low + high) / 2) < 2
    assert noises([np.zeros((32, 32, 3), np.uint8)])[0].max() == 16  # a black beginning gets noise as well
    full = noises(frames, "recursive", "full")
    assert full.min() == 0 and full.max() == 255


@pytest.mark.parametrize("carry", ["static", "recursive"])
def test_the_range_follows_the_light_by_one_level_a_frame_and_jumps_in_a_cut_alone(carry):
    still = view(SCENE, 0, 0, SIZE)[:48, :64]
    lit = [(still * share).astype(np.uint8) for share in (0.3, 0.4, 0.45, 0.5, 0.55)]  # light comes on
    noise = noises(lit, carry).astype(int)
    steps = np.abs(np.diff(np.stack([noise.min((1, 2)), noise.max((1, 2))]), axis=1))
    assert steps.max() == 1  # less than the light, which goes on by more than that
    flash = [np.full((32, 32, 3), value, np.uint8) for value in (0, 0, 200, 200)]  # looks like a cut
    noise = noises(flash, carry).astype(int)
    assert [frame.max() for frame in noise[:2]] == [16, 16]
    assert noise[2].max() > 100 and abs(noise[3].max() - noise[2].max()) <= 1


def test_the_seed_decides_and_without_one_nothing_does():
    frames = moving(2, 1, 4)
    assert np.array_equal(noises(frames), noises(frames))
    unknown = [noises(frames, seed=seed) for seed in (None, None, 0, 1)]
    for i, one in enumerate(unknown):
        assert all(abs(alike(one[0], other[0])) < 0.02 for other in unknown[:i])


def test_two_videos_at_once_do_not_meet_and_memory_does_not_grow():
    one, two = moving(2, 0, 8), moving(-1, 1, 8)
    first, second = CarriedNoise(seed=0), CarriedNoise(seed=0)
    mixed = [(first.step(a), second.step(b)) for a, b in zip(one, two, strict=True)]
    assert np.array_equal([a for a, _ in mixed], noises(one))
    assert np.array_equal([b for _, b in mixed], noises(two))

    def held(thing: object, depth: int = 3) -> int:
        if isinstance(thing, np.ndarray):
            return thing.nbytes
        inside = (
            vars(thing).values() if hasattr(thing, "__dict__") else thing if isinstance(thing, tuple) else ()
        )
        return sum(held(part, depth - 1) for part in inside) if depth else 0

    noise, sizes = CarriedNoise(), []
    for frame in one * 3:
        noise.step(frame)
        sizes.append(held(noise))
    assert sizes[0] > 0 and len(set(sizes[3:])) == 1


@pytest.mark.parametrize("carry", CARRIES)
@pytest.mark.parametrize("size", [(1, 1), (33, 2), (5, 7), (21, 300), (50, 700)])
def test_any_size_and_the_frame_is_not_touched(carry, size):
    frames = RANDOM.integers(0, 256, (3, *size, 3), np.uint8)
    before = frames.copy()
    noise = noises(frames, carry)
    assert noise.shape == frames.shape and noise.dtype == np.uint8
    assert np.array_equal(frames, before)


def test_a_wrong_name_is_refused():
    with pytest.raises(ValueError, match="recursive, eq4, released, iid, static is needed, got 'fast'"):
        CarriedNoise("fast")  # type: ignore[arg-type]


def test_hard_leaves_the_noise_and_nothing_else():
    image = view(SCENE, 0, 0, SIZE)
    noise = CarriedNoise().step(image)
    mask = RANDOM.random(SIZE).astype(np.float32)
    mask[0, 0] = np.nan  # what is not known is hidden
    hidden = ~(mask < 0.5)
    out = blend(image, noise, mask)
    assert np.array_equal(out[hidden], noise[hidden]) and np.array_equal(out[~hidden], image[~hidden])
    assert np.array_equal(blend(image, noise, hidden), out)
    assert not np.shares_memory(out, noise) and not np.shares_memory(out, image)
    with pytest.raises(ValueError, match="one size"):
        blend(image, noise, mask[:5])


def test_soft_is_eq_5():
    image = view(SCENE, 0, 0, SIZE)
    noise = CarriedNoise().step(image)
    mask = RANDOM.random(SIZE).astype(np.float32)
    expected = image + mask[..., None].astype(float) * (noise.astype(float) - image)
    assert np.abs(blend(image, noise, mask, "soft") - expected).max() < 0.51


def test_known_noise_undoes_soft_but_not_hard():
    image = view(SCENE, 0, 0, SIZE).astype(float)
    noise = CarriedNoise().step(image.astype(np.uint8))
    share = np.full(SIZE, 0.7, np.float32)
    found = {}
    for mode in ("soft", "hard"):
        out = blend(image.astype(np.uint8), noise, share, mode).astype(float)
        found[mode] = alike((out - 0.7 * noise) / (1 - 0.7), image)
    assert found["soft"] > 0.99 and abs(found["hard"]) < 0.02


def test_averages_over_time_reveal_nothing():
    """A fixed camera, with the small differences from frame to frame that every sensor has."""
    still = view(SCENE, 0, 0, SIZE)
    frames = [np.clip(still + RANDOM.normal(0, 4, still.shape), 0, 255).astype(np.uint8) for _ in range(25)]
    everywhere = np.ones(SIZE, bool)
    for carry in ("recursive", "iid"):
        out = [blend(f, n, everywhere) for f, n in zip(frames, noises(frames, carry), strict=True)]
        for guess in (np.mean(out, 0), np.median(out, 0), np.max(out, 0), np.std(out, 0)):
            assert abs(alike(guess, still)) < 0.02
    smooth = cv2.GaussianBlur(np.mean(out, 0), (0, 0), 3)
    assert abs(alike(smooth, cv2.GaussianBlur(still.astype(float), (0, 0), 3))) < 0.1


def flow(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Another estimator than the one that carries the noise: slower, and at full size."""
    grey: list[Grey] = [cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.uint8) for image in (a, b)]
    dis = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    return dis.calc(grey[0], grey[1], None)  # type: ignore[arg-type]


def errors(frames, mask, at, carry) -> np.ndarray:
    """How far the flow of the anonymized video is from that of the original, inside the mask where things move."""
    out = [blend(f, n, mask) for f, n in zip(frames, noises(frames, carry), strict=True)]
    found = []
    for t in at:
        true = flow(frames[t - 1], frames[t])
        sure = (
            ~inconsistent(true, flow(frames[t], frames[t - 1]))
            & mask
            & (np.hypot(*true.transpose(2, 0, 1)) > 1)
        )
        found.append(np.linalg.norm(flow(out[t - 1], out[t]) - true, axis=-1)[sure])
    return np.concatenate(found)


def test_motion_survives_on_a_known_one():
    frames = moving(3, 0, 8)
    mask = np.zeros(SIZE, bool)
    mask[30:210, 40:280] = True
    error = {c: np.median(errors(frames, mask, (4, 7), c)) for c in ("recursive", "eq4", "iid")}
    assert error["recursive"] < 0.3
    assert error["iid"] > 3 * error["recursive"] and error["eq4"] > 3 * error["recursive"]


@needs_shared
@pytest.mark.parametrize("name", ["vtest.avi", "asl/walk.mkv"])
def test_motion_survives_in_real_videos(name):
    video = cv2.VideoCapture(str(SHARED / "video" / name))
    frames = [cv2.cvtColor(video.read()[1], cv2.COLOR_BGR2RGB).astype(np.uint8) for _ in range(40)]
    height, width = frames[0].shape[:2]
    mask = np.zeros((height, width), bool)
    mask[height // 8 : -height // 8, width // 8 : -width // 8] = True
    error = {c: np.median(errors(frames, mask, (12, 25, 38), c)) for c in ("recursive", "eq4", "iid")}
    assert error["iid"] > 3 * error["recursive"] and error["eq4"] > 1.2 * error["recursive"]
