"""The synthetic generator: always the same, true to its truth, and fair."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from errors import refuses
from veil import data
from veil.data import synthetic
from veil.data.synthetic import (
    ACTIONS,
    ANOMALIES,
    ATTRIBUTES,
    COUNTS,
    FPS,
    IDENTITIES,
    KINDS,
    LENGTHS,
    Kind,
    VideoGenerator,
    read,
)
from veil.data.synthetic.backgrounds import BACKGROUNDS
from veil.data.synthetic.motion import ACTION_POSES, STAND, ActionState, pose
from veil.data.synthetic.people import TRAITS, gaits, people, uniform, with_equal_looks
from veil.data.synthetic.render import (
    ALPHA,
    DEPTH,
    LIGHT,
    TILE,
    crop_views,
    make_shapes,
    mirror_pad,
    rasterize,
    to_images,
    to_tiles,
)
from veil.data.synthetic.scenarios import FLIPPED, VideoRng

FEMALE, COMPANY = ATTRIBUTES.index("female"), ATTRIBUTES.index("company")
BLOCK = len(ACTIONS)


@pytest.fixture(scope="module")
def generator() -> VideoGenerator:
    return VideoGenerator(size=48)


def test_same_seed_same_pixels_and_another_seed_other_pixels() -> None:
    one, two, other = (VideoGenerator(seed, size=48).render([3, 8], length=2)[0] for seed in (5, 5, 6))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_a_video_is_the_same_alone_in_a_batch_and_in_a_window(generator: VideoGenerator, kind: Kind) -> None:
    length = min(9, LENGTHS[kind])
    together, truth = generator.render([11, 3, 40], kind, length=length)
    alone, own = generator.render([3], kind, length=length)
    assert together.shape == (3, length, 48, 48, 3) and together.dtype == torch.uint8
    assert torch.equal(together[1], alone[0])
    assert torch.equal(truth.joints[1], own.joints[0])
    assert torch.equal(truth.labels[1], own.labels[0])
    if length > 1:
        window, _ = generator.render([3], kind, first=4, length=3)
        assert torch.equal(window[0], alone[0, 4:7])


def test_full_size_frames_do_not_depend_on_their_batch_either() -> None:
    generator = VideoGenerator()
    together, _ = generator.render(range(6), length=8)  # enough for more than one part
    assert torch.equal(together[4], generator.render([4], length=8)[0][0])


def test_rendering_leaves_the_threads_of_torch_alone(generator: VideoGenerator) -> None:
    before = torch.get_num_threads()
    generator.render([0], length=1)
    assert torch.get_num_threads() == before


def test_frames_are_pictures_with_grain(generator: VideoGenerator) -> None:
    frames, _ = generator.render(range(12), length=1)
    for frame in frames[:, 0].float():
        assert 20 < frame.mean() < 235
        assert frame.std() > 12
    again, _ = generator.render([0], length=4)
    assert not torch.equal(again[0, 0], again[0, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_is_made_on_the_device_of_the_generator(generator: VideoGenerator, kind: Kind) -> None:
    expected, _ = generator.render([2], kind, length=1)  # tables are made now
    index = torch.tensor([2])
    with torch.device("meta"):  # whatever has no device of its own ends up here, and fails
        frames, _ = generator.render(index, kind, length=1)
    assert torch.equal(frames, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_paints_the_same() -> None:
    here, _ = VideoGenerator().render(range(12), length=4)
    there, _ = VideoGenerator(device="cuda").render(range(12), length=4)
    away = (here.int() - there.cpu().int()).abs()
    assert (away > 1).float().mean() < 1e-4


def test_painting_is_the_signed_distance_equation() -> None:
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(2, 12, 9, generator=generator)
    turn = 2 * torch.pi * u[..., 2]
    shapes = make_shapes(
        64 * u[..., 0],
        48 * u[..., 1],
        axis=(turn.cos(), turn.sin()),
        long=12 * u[..., 3],
        wide=4 * u[..., 4],
        radius=2 + 6 * u[..., 5],
        taper=0.3 * (u[..., 6] - 0.5),
        edge=1 + 3 * u[..., 7],
        alpha=0.3 + 0.7 * u[..., 8],
        light=0.0,
        color=torch.rand(2, 12, 3, generator=generator),
        depth=torch.rand(2, 12, generator=generator),
    )
    back = torch.rand(2, 3, 48, 64, generator=generator)
    tiles = to_tiles(back)
    rasterize(tiles, shapes)
    for frame in range(2):
        assert torch.allclose(to_images(tiles)[frame], _naive(back[frame], shapes[frame]), atol=2e-5)


def _naive(picture: Tensor, shapes: Tensor) -> Tensor:
    """Every shape over every pixel, far to near."""
    picture = picture.clone()
    height, width = picture.shape[1:]
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    for shape in sorted(shapes, key=lambda shape: float(shape[DEPTH])):
        cx, cy, ux, uy, long, wide, radius, taper, edge = shape[:9]
        u, v = (x - cx) * ux + (y - cy) * uy, (y - cy) * ux - (x - cx) * uy
        along = u.clamp(-long, long)
        distance = torch.hypot(u - along, (v.abs() - wide).clamp_min(0)) - (radius + taper * along)
        cover = (0.5 - distance / edge).clamp(0, 1) * shape[ALPHA]
        assert shape[LIGHT] == 0
        picture += cover * (shape[11:14, None, None] - picture)
    return picture


def test_light_comes_from_the_upper_left() -> None:
    ball = make_shapes(24.0, 24.0, radius=14.0, light=0.3, color=torch.full((1, 1, 3), 0.5))
    tiles = to_tiles(torch.zeros(1, 3, 48, 48))
    rasterize(tiles, ball)
    picture = to_images(tiles)[0, 0]
    assert picture[17, 17] > picture[24, 24] > picture[31, 31] > 0.2


def test_the_camera_sees_a_crop_and_beyond_it_a_mirror() -> None:
    picture = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    wide = mirror_pad(picture, 32)
    which = torch.zeros(3, dtype=torch.int64)
    shift = torch.tensor([[0.0, 0.0], [5.0, -3.0], [40.0, 0.0]])
    seen = crop_views(wide, which, shift, 32)
    assert torch.equal(seen[0], picture[0, :, 16:48, 32:64])
    assert torch.equal(seen[1], picture[0, :, 13:45, 37:69])
    assert torch.equal(seen[2][..., :24], picture[0, :, 16:48, 72:96])
    assert torch.equal(seen[2][..., 24:], picture[0, :, 16:48, 88:96].flip(2))
    half = crop_views(wide, which[:1], torch.tensor([[0.5, 0.0]]), 32)[0]
    assert torch.allclose(half, (picture[0, :, 16:48, 32:64] + picture[0, :, 16:48, 33:65]) / 2)


def test_tiles_go_back_to_pictures() -> None:
    pictures = torch.rand(2, 3, 2 * TILE, 3 * TILE)
    assert torch.equal(to_images(to_tiles(pictures)), pictures)


def test_chances_are_even_and_do_not_depend_on_their_neighbours() -> None:
    u = uniform(0, "test", torch.arange(4000), 5)
    assert u.min() >= 0 and u.max() < 1
    assert (u.mean(0) - 0.5).abs().max() < 0.02
    assert (torch.corrcoef(u.T) - torch.eye(5)).abs().max() < 0.06
    assert torch.equal(u[7:9], uniform(0, "test", torch.tensor([7, 8]), 5))
    assert not torch.equal(u, uniform(0, "other", torch.arange(4000), 5))


def test_cards_are_dealt_evenly() -> None:
    cards = VideoRng(0, "clips", IDENTITIES).balanced_choice("test", 0, torch.arange(60), 12).view(5, 12)
    assert all(sorted(hand.tolist()) == list(range(12)) for hand in cards)
    assert len({tuple(hand.tolist()) for hand in cards}) == 5


def test_every_trait_is_worn_by_half_of_the_identities_and_none_goes_with_another() -> None:
    for seed in (0, 1):
        traits = people(seed, torch.arange(IDENTITIES), IDENTITIES).traits.double() * 2 - 1  # (32, TRAITS)
        assert torch.equal(traits.T @ traits, IDENTITIES * torch.eye(len(TRAITS), dtype=torch.float64))
        assert torch.equal(traits.sum(0), torch.zeros(len(TRAITS), dtype=torch.float64))
        assert len({tuple(row) for row in traits.tolist()}) == IDENTITIES


def test_strangers_have_balanced_traits() -> None:
    traits = people(0, torch.arange(4000) + 1000, IDENTITIES).traits.double()
    assert (traits.mean(0) - 0.5).abs().max() < 0.03


def test_kin_share_traits_but_not_clothes() -> None:
    one, two = torch.tensor([[3, 5000]]), torch.tensor([[3]])
    kin = people(0, one, IDENTITIES, like=two)
    assert torch.equal(kin.traits[0, 0], kin.traits[0, 1])
    assert not torch.equal(kin.colors[0, 0], kin.colors[0, 1])
    assert kin.gait.tempo[0, 0] != kin.gait.tempo[0, 1]


def test_actions_go_with_everybody_and_every_place() -> None:
    generator = VideoGenerator()
    truth = generator.truth(range(BLOCK * IDENTITIES))
    pairs = Counter(zip(truth.action.tolist(), truth.identity.tolist(), strict=True))
    assert len(pairs) == BLOCK * IDENTITIES and set(pairs.values()) == {1}
    for block in truth.action.view(-1, BLOCK):
        assert sorted(block.tolist()) == list(range(BLOCK))
    place = generator.scenario(range(BLOCK * 60)).background
    action = generator.truth(range(BLOCK * 60)).action
    for number in range(BLOCK):
        assert Counter(place[action == number].tolist()) == dict.fromkeys(range(len(BACKGROUNDS)), 10)


def test_company_is_kept_in_half_of_the_clips_and_in_every_fight() -> None:
    truth = VideoGenerator().truth(range(BLOCK * 220))
    company, fight = truth.attributes[:, COMPANY], truth.action == ACTIONS.index("fight")
    assert company.mean() == 0.5
    assert company[fight].all()
    assert company[~fight].mean() == pytest.approx(5 / 11)
    assert torch.equal(company > 0, truth.present[:, 1])


def _doing(action: int, time: float, phase: float = 0.3) -> ActionState:
    one = torch.ones(1, 1, dtype=torch.float64)
    number = torch.full((1, 1), action)
    return ActionState(number, time * one, 1e4 * one, phase * one, one, one < 0, 0 * one)


def test_everybody_starts_from_the_same_pose_whatever_follows() -> None:
    gait = gaits(0, torch.zeros(1, 1, dtype=torch.int64), IDENTITIES)
    poses = [pose(_doing(action, 0.0), gait) for action in range(STAND)]
    assert all(torch.allclose(each, poses[0], atol=1e-9) for each in poses)
    later = [pose(_doing(action, 0.7), gait) for action in range(STAND)]
    assert all((a - b).abs().max() > 10 for a, b in combinations(later, 2))


def test_every_action_moves_the_body_and_standing_does_not() -> None:
    generator = VideoGenerator(size=112)
    index = torch.arange(BLOCK)
    _, truth = generator.render(index)
    own = truth.joints[:, :, 0] - truth.joints[:, :, 0, :1]  # from the hips: (B, T, POINTS, 2)
    moved = (own - own[:, :1]).norm(dim=-1).amax((1, 2))
    assert moved.min() > 12  # pixels
    still = truth.present[:, 1] & (truth.action != ACTIONS.index("fight"))
    company = truth.joints[still][:, :, 1] - truth.joints[still][:, :, 1, :1]
    assert still.any()
    assert (company - company[:, :1]).norm(dim=-1).max() < 6
    assert torch.isfinite(truth.joints).all()
    assert set(ACTION_POSES) == {*ACTIONS, "stand"}


def test_people_are_in_the_picture(generator: VideoGenerator) -> None:
    _, truth = generator.render(range(24))
    hips = truth.joints[:, :, 0, 0]
    assert (hips > 0).all() and (hips < generator.size).all()
    heads = truth.joints[:, 0, 0, 2, 1]
    assert (heads > 0).all()


def test_splits_are_fixed_and_disjoint() -> None:
    few, many = read(count=48), read(count=480)
    assert [sample.split for sample in few.samples] == [sample.split for sample in many.samples[:48]]
    assert {sample.split for sample in few.samples} == {"train", "val", "test"}
    counts = Counter(sample.split for sample in many.samples)
    assert counts == {"train": 336, "val": 48, "test": 96}
    for split in ("train", "val", "test"):
        actions = Counter(sample.action for sample in many.samples if sample.split == split)
        assert len(actions) == BLOCK and len(set(actions.values())) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_keeps_its_contract(kind: Kind) -> None:
    dataset = read(kind=kind, count=40, size=48)
    assert len({sample.id for sample in dataset.samples}) == 40
    for sample in dataset.samples:
        assert sample.path is None
        assert sample.action is None or 0 <= sample.action < len(dataset.actions)
        assert len(sample.attributes) == len(dataset.attributes) and set(sample.attributes) <= {0.0, 1.0}
        assert sample.identity is None or 0 <= sample.identity < len(dataset.identities)
        if sample.attributes:
            assert sample.groups["gender"] == ("female" if sample.attributes[FEMALE] else "male")
        for segment in sample.segments:
            assert 0 <= segment.start < segment.end <= LENGTHS[kind] / FPS
            assert 0 <= segment.label < len(dataset.actions)
    sample = replace(dataset.samples[7], span=(0, min(3, LENGTHS[kind])))
    frames = dataset.frames(sample)
    assert isinstance(frames, np.ndarray) and frames.dtype == np.uint8
    assert np.array_equal(frames, VideoGenerator(size=48).render([7], kind, length=len(frames))[0][0].numpy())


def test_samples_are_rendered_in_batches_of_any_order_and_kind() -> None:
    clips, bias = read(count=24).samples, read(kind="bias", count=24).samples
    batch = [clips[5], bias[2], clips[1]]
    frames = synthetic.render_samples(batch, size=32)
    assert frames.shape == (3, 16, 32, 32, 3)
    for one, sample in zip(frames, batch, strict=True):
        assert torch.equal(one, synthetic.render_samples([sample], size=32)[0])
    window = replace(clips[5], id=clips[5].id + "#2", span=(4, 8))
    assert torch.equal(synthetic.render_samples([window], size=32)[0], frames[0, 4:8])


def test_mistakes_are_refused() -> None:
    with refuses("synthetic-kind-unknown"):
        read(kind="dances")
    sample = read(count=1).samples[0]
    with refuses("not-a-synthetic-sample"):
        synthetic.render_samples([replace(sample, id="v_walk_01")])
    with pytest.raises(ValueError, match="equal lengths"):
        synthetic.render_samples([sample, replace(sample, span=(0, 3))], size=32)
    with pytest.raises(ValueError, match="index"):
        VideoGenerator().render([])
    with pytest.raises(ValueError, match="16"):
        VideoGenerator(size=8)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"colour": 3}, "dataset-option-unknown"),
        ({"root": "x"}, "dataset-option-unknown"),
        ({"name": "x"}, "dataset-option-unknown"),
        ({"count": "x"}, "dataset-option-invalid"),
        ({"seed": None}, "dataset-option-invalid"),
        ({"kind": 3}, "dataset-option-invalid"),
        ({"count": 0}, "option-out-of-range"),
        ({"size": 8}, "option-out-of-range"),
        ({"seed": 2**63}, "option-out-of-range"),
        ({"seed": -1}, "option-out-of-range"),
    ],
)
def test_options_are_checked_as_those_of_other_datasets(options: dict[str, object], code: str) -> None:
    with refuses(code):
        data.read("synthetic", **options)


def test_the_reader_by_name_has_the_same_options() -> None:
    named, own = (inspect.signature(reader).parameters for reader in (data.DATASETS["synthetic"], read))
    assert {key: one.default for key, one in named.items()} == {key: one.default for key, one in own.items()}
    assert len(data.read("synthetic", count=None, kind="untrimmed").samples) == COUNTS["untrimmed"]
    with refuses("synthetic-has-no-folder"):
        data.read("synthetic", "/faces")


def test_untrimmed_videos_have_several_actions_with_pauses_between_them() -> None:
    dataset, generator = read(kind="untrimmed", count=60, size=48), VideoGenerator(size=48)
    labels = generator.truth(range(60), "untrimmed").labels
    seen = Counter()
    for sample, frames in zip(dataset.samples, labels, strict=True):
        assert 3 <= len(sample.segments) <= 6
        for before, after in zip(sample.segments, sample.segments[1:], strict=False):
            assert after.start - before.end > 0.3
        for segment in sample.segments:
            assert 1.7 <= segment.end - segment.start <= 3.3
            inside = frames[round(segment.start * FPS) : round(segment.end * FPS)]
            assert (inside == segment.label).all()
            seen[segment.label] += 1
        assert sum(round((s.end - s.start) * FPS) for s in sample.segments) == int((frames >= 0).sum())
        if ACTIONS.index("fight") in [segment.label for segment in sample.segments]:
            assert sample.attributes[COMPANY] == 1
    assert set(seen) == set(range(BLOCK))


def test_who_fights_in_an_untrimmed_video_is_near() -> None:
    generator = VideoGenerator(size=48)
    fight = ACTIONS.index("fight")
    labels = generator.truth(range(40), "untrimmed").labels
    for index in (labels == fight).any(1).nonzero()[:6, 0].tolist():
        first = int((labels[index] == fight).nonzero()[5])
        _, truth = generator.render([index], "untrimmed", first=first, length=1)
        a, b = truth.joints[0, 0, :, 0]
        assert (a - b).norm() < 0.5 * generator.size


def test_anomalies_are_rare_seen_and_labelled_only_where_they_are_scored() -> None:
    dataset, generator = read(kind="surveillance", count=40, size=48), VideoGenerator(size=48)
    truth = generator.truth(range(40), "surveillance")
    assert Counter(sample.action == 0 for sample in dataset.samples) == {True: 20, False: 20}
    assert {ANOMALIES[sample.action or 0] for sample in dataset.samples} == set(ANOMALIES)
    assert 0.01 < (truth.labels > 0).float().mean() < 0.08
    for sample, labels in zip(dataset.samples, truth.labels, strict=True):
        assert {*labels.tolist()} <= {0, sample.action}
        assert (labels > 0).any() == (sample.action != 0)
        assert len(sample.segments) == (0 if sample.split == "train" else int(sample.action != 0))
    for index in (truth.action > 0).nonzero()[:6, 0].tolist():
        first = int((truth.labels[index] > 0).nonzero()[2])
        _, seen = generator.render([index], "surveillance", first=first, length=1)
        hips = seen.joints[0, 0, 0, 0]
        assert (hips > 0).all() and (hips < generator.size).all()


def test_the_bias_is_nineteen_in_twenty_and_the_test_is_balanced() -> None:
    dataset = read(kind="bias", count=BLOCK * 200)
    women: dict[tuple[str, str], list[float]] = {}
    for sample in dataset.samples:
        women.setdefault((sample.split, ACTIONS[sample.action or 0]), []).append(sample.attributes[FEMALE])
    for (split, action), values in women.items():
        share = sum(values) / len(values)
        expected = 0.5 if split == "test" else 0.95 if action == FLIPPED else 0.05
        assert share == pytest.approx(expected), (split, action, share)


def test_walks_have_a_gallery_and_probes_from_all_sides() -> None:
    dataset = read(kind="gait")
    roles = Counter(
        (sample.groups["role"], sample.groups["walk"][:2], sample.split) for sample in dataset.samples
    )
    assert roles == {
        ("gallery", "nm", "train"): 480,
        ("gallery", "nm", "val"): 160,
        ("probe", "nm", "test"): 320,
        ("probe", "bg", "test"): 320,
        ("probe", "cl", "test"): 320,
    }
    seen = Counter(
        (sample.identity, sample.groups["walk"], sample.groups["view"]) for sample in dataset.samples
    )
    assert len(seen) == len(dataset.samples)


def test_only_motion_identifies_walkers_when_all_look_alike(generator: VideoGenerator) -> None:
    everybody = people(0, torch.arange(IDENTITIES), IDENTITIES)
    same = with_equal_looks(everybody)
    for value in same[:-1]:
        assert all(torch.equal(each, value[0]) for each in value)
    table = torch.stack(list(same.gait), dim=1)
    apart = (table[:, None] - table).abs().amax(-1) + torch.eye(IDENTITIES)
    assert apart.min() > 0.3
    frames, truth = generator.render([4], "gait-alike", length=4)
    normal, known = generator.render([4], "gait", length=4)
    assert not torch.equal(frames, normal)
    assert torch.equal(truth.identity, known.identity)
    sample = read(kind="gait-alike", count=1).samples[0]
    assert sample.attributes == () and "gender" not in sample.groups  # nothing private can be seen


def test_a_coat_comes_with_other_clothes(generator: VideoGenerator) -> None:
    samples = read(kind="gait").samples
    script = generator.scenario(range(len(samples)), "gait")
    for i, sample in enumerate(samples):
        own = bool(script.outfit[i, 0] == script.number[i, 0])
        assert own == (not sample.groups["walk"].startswith("cl"))


def test_gaits_are_spread_evenly() -> None:
    for value in gaits(0, torch.arange(IDENTITIES), IDENTITIES):
        steps = value.sort().values.diff()
        assert torch.allclose(steps, steps[0].expand_as(steps))


def test_show_writes_a_sheet_and_a_video(tmp_path: Path) -> None:
    paths = synthetic.show(tmp_path / "new", size=32)
    assert [path.suffix for path in paths] == [".jpg", ".mp4"]
    assert all(path.stat().st_size > 5000 for path in paths)
