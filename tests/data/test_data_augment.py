from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor
from torchvision.transforms.v2 import functional

from errors import refuses
from layouts import pictures
from veil.data.augment import PRESETS, Augmentation, RandomChange

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def clips(count: int = 6, height: int = 40, width: int = 56, frames: int = 4) -> Tensor:
    return 0.2 + 0.6 * torch.rand(count, 3, frames, height, width, generator=seeded(1))


def brightness(clip: Tensor) -> Tensor:
    return clip[0, :, 0, 0]


def test_clips_skip_and_shrink_their_skip_for_short_videos() -> None:
    frames = pictures(64)
    for skip in (1, 2, 4):
        taken = Augmentation(skip=skip).taken(64, 3)
        assert taken.tolist() == [3 + skip * place for place in range(16)]
    clip = Augmentation(skip=2).random_clip(frames, seeded())
    assert clip.shape == (3, 16, 48, 64) and clip.dtype == torch.uint8
    assert Augmentation(skip=4).taken(40, 0).tolist() == [2 * place for place in range(16)]
    assert Augmentation(skip=4).taken(10, 0).tolist() == [*range(10), 9, 9, 9, 9, 9, 9]
    assert Augmentation(skip=None).taken(46, 0).tolist() == [3 * place for place in range(16)]


def test_random_clips_begin_anywhere_and_stay_inside() -> None:
    augment = Augmentation(skip=2)
    starts = augment.starts(40, 2000, seeded())
    assert sorted(set(starts.tolist())) == list(range(10))
    assert augment.taken(40, 9).max() == 39


def test_test_clips_are_equidistant_from_start_to_end() -> None:
    found = Augmentation(skip=2, clips=5).test_clips(pictures(131))
    assert len(found) == 5
    whole = torch.from_numpy(pictures(131).copy())[:, 0, 0, 0]
    for clip, start in zip(found, (0, 25, 50, 75, 100), strict=True):
        assert brightness(clip).tolist() == whole[start : start + 31 : 2].tolist()
    assert len(Augmentation().test_clips(pictures(5), 10)) == 10


@pytest.mark.parametrize("flipped", [False, True])
def test_crops_are_resized_as_torchvision_does(flipped: bool) -> None:
    video = clips(2)
    boxes = [(5, 37, 8, 40), (0, 20, 3, 56)]
    for size in (12, 64):
        made = Augmentation(size=size)._resampled(video, boxes, torch.tensor([flipped, flipped]))  # pyright: ignore
        for place, (top, bottom, left, right) in enumerate(boxes):
            frames = video[place].transpose(0, 1)
            naive = functional.resized_crop(
                frames, top, left, bottom - top, right - left, [size, size], antialias=True
            )
            naive = naive.flip(-1) if flipped else naive
            torch.testing.assert_close(made[place], naive.transpose(0, 1), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("augment", "naive", "zero"),
    [
        (Augmentation(size=8, brightness=RandomChange(1.0, 0.1)), functional.adjust_brightness, 1),
        (Augmentation(size=8, saturation=RandomChange(1.0, 0.1)), functional.adjust_saturation, 1),
        (Augmentation(size=8, contrast=RandomChange(1.0, 0.1)), functional.adjust_contrast, 1),
        (Augmentation(size=8, hue=RandomChange(1.0, 0.1)), functional.adjust_hue, 0),
    ],
)
def test_colors_change_as_in_torchvision(
    augment: Augmentation, naive: Callable[..., Tensor], zero: int
) -> None:
    video = clips(2, 8, 8, frames=2)
    made = augment.train(video, seeded())
    for before, after in zip(video, made, strict=True):
        amounts = torch.linspace(zero - 0.1, zero + 0.1, 101).tolist()
        tried = torch.stack([naive(before.transpose(0, 1), amount).transpose(0, 1) for amount in amounts])
        assert (tried - after).abs().amax((1, 2, 3, 4)).min() < 5e-3
    assert (made - video).abs().max() > 0.005


def test_grey_is_grey_and_gamma_changes_only_grey() -> None:
    made = Augmentation(size=32, grey=1.0).train(clips(3, 32, 32), seeded())
    torch.testing.assert_close(made[:, 0], made[:, 1])
    gamma = Augmentation(size=32, grey=1.0, gamma=RandomChange(1.0, 0.15)).train(clips(3, 32, 32), seeded())
    powers = gamma[:, 0].log() / made[:, 0].log()
    assert (powers.flatten(1).std(1) < 1e-3).all()
    assert ((powers > 0.85) & (powers < 1.15)).all()
    plain = clips(3, 32, 32)
    torch.testing.assert_close(
        Augmentation(size=32, gamma=RandomChange(1.0, 0.15)).train(plain, seeded()), plain
    )


def test_cut_out_is_one_square_for_all_frames() -> None:
    made = Augmentation(size=32, erase=1.0, erased=(9, 12)).train(clips(40, 32, 32), seeded())
    sides = set()
    for clip in made:
        hole = (clip == 0).all(0)  # (T, H, W)
        assert (hole == hole[0]).all()
        rows, columns = hole[0].any(1).sum().item(), hole[0].any(0).sum().item()
        assert rows == columns and hole[0].sum() == rows * columns
        sides.add(rows)
    assert sides == {9, 10, 11, 12}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_frame_of_a_clip_is_changed_alike(preset: str) -> None:
    """A clip of one repeated frame stays one repeated frame, and two clips are changed differently."""
    augment = PRESETS[preset]
    still = clips(1, 60, 80, frames=1).expand(4, -1, 3, -1, -1)
    made = augment.train(still, seeded())
    assert made.shape == (4, 3, 3, augment.size, augment.size)
    assert (made >= 0).all() and (made <= 1).all()
    torch.testing.assert_close(made, made[:, :, :1].expand_as(made), atol=1e-6, rtol=0)
    if augment.flip:
        assert any((made[0] - other).abs().max() > 0.05 for other in made[1:])
    assert torch.equal(made, augment.train(still, seeded()))
    assert augment.flip == 0 or not torch.equal(made, augment.train(still, seeded(1)))


def test_spact_changes_as_often_as_its_code() -> None:
    augment = PRESETS["spact"]
    count = 2000
    ramp = torch.linspace(0.3, 0.7, 8).expand(count, 3, 1, 8, 8).clone()
    ramp[:, 0] += 0.1
    flat = replace(augment, size=24, crop=(1.0, 1.0), erased=(9, 9))
    made = flat.train(ramp, seeded())
    flipped = made[:, 0, 0, :, :4].amax((1, 2)) > made[:, 0, 0, :, -4:].amax((1, 2))
    erased = (made == 0).all(1).flatten(1).any(1)
    grey = (made[:, 0] - made[:, 1]).abs().flatten(1).amax(1) < 1e-3
    assert flipped.float().mean().item() == pytest.approx(0.5, abs=0.03)
    assert erased.float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert grey.float().mean().item() == pytest.approx(0.1, abs=0.02)
    assert not (flipped & erased).any(), "one draw decides on both"
    free = replace(flat, erase_flipped=True).train(ramp, seeded())
    assert ((free == 0).all(1).flatten(1).any(1) & flipped).any()


def test_two_views_share_a_corner_only_where_set() -> None:
    row = torch.linspace(0, 1, 40).expand(200, 3, 1, 40, 40)
    for shared in (True, False):
        augment = Augmentation(size=16, crop=(0.5, 0.5), shared_corner=shared)
        one, two = augment.views(row, seeded())
        assert torch.equal(one, two) is shared
    one, two = Augmentation(size=16, crop=(0.5, 1.0), shared_corner=True).views(row, seeded())
    assert not torch.equal(one, two)


def test_a_test_clip_is_the_middle() -> None:
    video = clips(2, 40, 60)
    made = Augmentation(size=32, middle=0.8).test(video)
    naive = functional.resized_crop(video[0].transpose(0, 1), 4, 14, 32, 32, [32, 32], antialias=True)
    torch.testing.assert_close(made[0], naive.transpose(0, 1), atol=1e-5, rtol=0)


def test_crops_by_area_stay_inside_and_have_the_area() -> None:
    augment = Augmentation(crop=(0.5, 0.5), area=True)
    for drawn in torch.rand(50, 4, generator=seeded()).tolist():
        top, bottom, left, right = augment._box((60, 80), *drawn)  # pyright: ignore[reportPrivateUsage]
        assert 0 <= top < bottom <= 60 and 0 <= left < right <= 80
        assert (bottom - top) * (right - left) == pytest.approx(2400, rel=0.05)


def test_clips_may_have_many_sizes_and_be_bytes() -> None:
    videos = [(255 * clip).byte() for clip in (clips(1, 30, 40)[0], clips(1, 50, 40)[0])]
    augment = PRESETS["spact"]
    made = augment.train(videos, seeded())
    assert made.shape == (2, 3, 4, 112, 112) and made.dtype == torch.float32
    same = torch.stack([videos[0], videos[0]])
    torch.testing.assert_close(augment.train(same, seeded()), augment.train(list(same), seeded()))
    with refuses("clip-shape"):
        augment.train(same.transpose(1, 2), seeded())


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_seed_gives_the_same_clips_on_any_device(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    video = clips(4)
    made = PRESETS["spact"].train(video.to(device), seeded())
    assert made.device.type == device
    torch.testing.assert_close(made.cpu(), PRESETS["spact"].train(video, seeded()), atol=1e-5, rtol=0)


def test_presets_are_those_of_the_papers() -> None:
    spact = PRESETS["spact"]
    assert (spact.length, spact.skip, spact.size, spact.clips, spact.crop, spact.middle) == (
        16,
        2,
        112,
        5,
        (0.6, 1.0),
        0.8,
    )
    assert (spact.flip, spact.grey, spact.contrast, spact.hue) == (
        0.5,
        0.1,
        RandomChange(0.125, 0.1),
        RandomChange(0.15, 0.05),
    )
    assert PRESETS["spact-paper"].clips == 10
    assert (PRESETS["penalty-paper"].skip, PRESETS["penalty-paper"].crop) == (4, (0.8, 0.8))
    assert (PRESETS["penalty"].skip, PRESETS["penalty"].crop, PRESETS["penalty"].size) == (2, (0.6, 1.0), 224)
    assert (PRESETS["splavu"].skip, PRESETS["splavu"].area, PRESETS["splavu"].middle) == (1, True, 224 / 256)
