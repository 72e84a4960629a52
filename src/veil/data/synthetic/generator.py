"""The generator of synthetic videos: frames and ground truth of any video, by its kind and index.

A scenario is turned into skeletons, skeletons into shapes, shapes into pixels. Angles and positions are computed in
double precision, so that a pixel never depends on the batch; only rasterization is done in small batches.

The names of random streams are part of the seed: renaming one changes the videos.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Self

import torch
from torch import Tensor

from veil.data.synthetic.motion import (
    ACTION_POSES,
    ACTIONS,
    JOINTS,
    STAND,
    ActionState,
    Skeleton,
    bones,
    pose,
    smooth,
)
from veil.data.synthetic.objects import SceneObjects, background_images, item_shapes, occluder_shapes
from veil.data.synthetic.people import People, View, body_shapes, build
from veil.data.synthetic.render import (
    crop_views,
    expose,
    make_shapes,
    mirror_pad,
    rasterize,
    to_images,
    to_tiles,
)
from veil.data.synthetic.scenarios import (
    ANOMALIES,
    FPS,
    IDENTITIES,
    LENGTHS,
    PICK_UP,
    Kind,
    Scenario,
    VideoRng,
    current_segment,
    displacement,
    make_scenario,
    people_in,
    select_people,
)

POINTS = (*JOINTS, "hand_r", "hand_l", "toe_r", "toe_l")


class GroundTruth(NamedTuple):
    """The labels of B videos of T frames with P people."""

    action: Tensor  # (B,) index into ACTIONS (surveillance: into ANOMALIES); -1: several
    identity: Tensor  # (B,) the number of the person; known identities come first
    attributes: Tensor  # (B, ATTRIBUTES) 0 or 1
    labels: Tensor  # (B, T) the action of each frame, as in `action`; -1 (surveillance: 0): none
    joints: Tensor  # (B, T, P, POINTS, 2) x and y, in pixels
    present: Tensor  # (B, P) whether the person is in the video; the labels are those of the first


class RenderThreads:
    """Threads that render in parallel: one on a GPU; on a CPU as many as torch would use in each operation.

    The operations here are short, and torch's own threads would mostly wait for one another.
    """

    def __init__(self, device: torch.device) -> None:
        self._threads = torch.get_num_threads() if device.type == "cpu" else 1

    def __enter__(self) -> Self:
        if self._threads > 1:
            torch.set_num_threads(1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads > 1:
            torch.set_num_threads(self._threads)

    def gather(self, work: Callable[[slice], Tensor], total: int, at_once: int) -> Tensor:
        """The concatenated results of `work` for the slices of ``total`` items."""
        parts = [slice(begin, begin + at_once) for begin in range(0, total, at_once)]
        if min(self._threads, len(parts)) == 1:
            return torch.cat([work(part) for part in parts])
        with ThreadPoolExecutor(self._threads) as pool:
            return torch.cat(list(pool.map(work, parts)))


class VideoGenerator:
    """Generates the videos of a seed; nothing is stored but the sensor noise."""

    def __init__(
        self,
        seed: int = 0,
        size: int = 112,
        *,
        fps: float = FPS,
        identities: int = IDENTITIES,
        device: torch.device | str = "cpu",
    ) -> None:
        if size < 16:
            raise ValueError(f"frames are at least 16 pixels wide, got {size}")
        self.seed, self.size, self.fps, self.identities = seed, size, fps, identities
        self.device = torch.device(device)
        grain = torch.randn(3, size + 96, size + 96, generator=torch.Generator().manual_seed(seed))
        # Windows of one noise image: (97, 97, 3, size, size); each frame uses one.
        self._grain = grain.to(self.device).unfold(1, size, 1).unfold(2, size, 1).permute(1, 2, 0, 3, 4)
        away = (torch.arange(size, device=self.device) + 0.5) / size * 2 - 1
        self._vignette = 1.03 - 0.09 * (away.square()[:, None] + away.square())

    def render(
        self,
        indices: Sequence[int] | Tensor,
        kind: Kind = "clips",
        *,
        first: int = 0,
        length: int | None = None,
    ) -> tuple[Tensor, GroundTruth]:
        """Frames ``(B, T, size, size, 3)`` uint8 from frame ``first`` on, and their ground truth."""
        index = self._index(indices)
        with RenderThreads(self.device) as threads:
            return self._render(
                threads, index, kind, first, LENGTHS[kind] - first if length is None else length
            )

    def truth(self, indices: Sequence[int] | Tensor, kind: Kind = "clips") -> GroundTruth:
        """The ground truth of whole videos, without joints: ``(B, T, P, 0, 2)``."""
        scenario = self.scenario(indices, kind)
        time = self._times(scenario, 0, LENGTHS[kind])
        none = torch.zeros(*time.shape, scenario.number.shape[1], 0, 2, device=self.device)
        return self._truth(kind, scenario, time, none)

    def scenario(self, indices: Sequence[int] | Tensor, kind: Kind = "clips") -> Scenario:
        """The scenarios of videos."""
        return make_scenario(VideoRng(self.seed, kind, self.identities), self._index(indices))

    def _index(self, indices: Sequence[int] | Tensor) -> Tensor:
        index = torch.as_tensor(indices, dtype=torch.int64, device=self.device).reshape(-1)
        if not len(index):
            raise ValueError("there is no index: give at least one")
        return index

    def _times(self, scenario: Scenario, first: int, length: int) -> Tensor:
        """The time of each frame: (B, T) seconds."""
        return (
            scenario.start_time[:, None]
            + (torch.arange(length, device=self.device).double() + first) / self.fps
        )

    def _render(
        self, threads: RenderThreads, index: Tensor, kind: Kind, first: int, length: int
    ) -> tuple[Tensor, GroundTruth]:
        rng = VideoRng(self.seed, kind, self.identities)
        scenario = make_scenario(rng, index)
        times = self._times(scenario, first, length)
        which = torch.arange(len(index), device=self.device).repeat_interleave(length)  # (F,)
        time = times.reshape(-1)  # (F,)
        joints, shapes, shift = self._animate(rng, index, scenario, which, time)
        exposure = rng.uniform("exposure", index, 4).float()
        gain = (0.93 + 0.12 * exposure[:, :1] + 0.05 * (exposure[:, 1:] - 0.5))[which]  # (F, 3)
        amount = (1.0 + 3.0 * rng.uniform("grain", index, 1).float())[which]
        keys = rng.keys(index)
        spot = (97 * rng.uniform("spot", index[which] * 4096 + (time * 1000).round().long(), 2)).long()

        def make_backgrounds(part: slice) -> Tensor:
            images = background_images(self.seed, scenario.background[part], keys[part], self.size)
            return mirror_pad(images, self.size)

        def render_frames(part: slice) -> Tensor:
            tiles = to_tiles(crop_views(images, which[part], shift[part], self.size))
            rasterize(tiles, shapes[part])
            grain = self._grain[spot[part, 0], spot[part, 1]].mul_(amount[part, :, None, None])
            return expose(to_images(tiles), self._vignette, gain[part], grain, self.size)

        # Few enough at once for a CPU's cache, enough to keep a GPU busy.
        at_once = max(1, int((32 if self.device.type == "cpu" else 8192) * (112 / self.size) ** 2))
        images = threads.gather(make_backgrounds, len(index), max(1, at_once // 4))
        frames = threads.gather(render_frames, len(which), at_once)
        truth = self._truth(kind, scenario, times, joints.view(*times.shape, *joints.shape[1:]))
        return frames.view(*times.shape, *frames.shape[1:]), truth

    def _animate(
        self, rng: VideoRng, index: Tensor, scenario: Scenario, which: Tensor, time: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Projected joints (F, P, POINTS, 2), all shapes (F, K, 15), and the shift of the camera (F, 2)."""
        persons = select_people(people_in(rng, scenario), which)
        state, heading, ground = _state_at(scenario, persons, which, time)
        far = rng.kind == "surveillance"
        if far:  # people who leave on one side return on the other, and all stay in their lanes
            x = (ground[..., 0] + 4).remainder(8.0) - 4
            ground = torch.stack([x, scenario.ground[which][..., 1]], dim=-1)
        skeleton = bones(pose(state, persons.gait), build(persons), heading, ground)
        scale, tilt, floor = (self.size / 4.6, 0.3, 0.8) if far else (self.size / 2.34, 0.2, 0.905)
        zoom = 0.98 + 0.04 * rng.uniform("zoom", index, 1)[which]
        follow = ground[:, :1] * (0.0 if far else 0.9)  # (F, 1, 2): the camera follows, with a lag
        shake = _shake(rng, index, which, time) * (self.size / 112)
        shift = shake + follow[:, 0] * torch.tensor([scale, 0.0], device=self.device, dtype=torch.float64)
        view = View(
            scale=scale * zoom * (1 + 0.05 * (ground[..., 1] - follow[..., 1])),
            x=self.size / 2 - shift[:, :1],
            y=floor * self.size - scale * tilt * follow[..., 1] - shake[:, 1:],
            tilt=tilt,
        )
        present, objects = scenario.present[which], _scene_objects(rng, index, scenario)
        shapes = [
            body_shapes(persons, scenario.accessories[which], skeleton, view, present).flatten(1, 2),
            _shadows(skeleton, view, present),
            occluder_shapes(objects, which, shake, self.size),
            item_shapes(objects, which, _item_position(objects, which, state, skeleton), view),
        ]
        ends = skeleton.origin + skeleton.axes[..., 0, :]
        points = torch.cat([skeleton.origin, ends[..., 5:7, :], ends[..., 11:13, :]], dim=-2)
        joints = torch.stack(view.project(points), dim=-1)
        return joints.float(), torch.cat(shapes, dim=1).float(), shift.float()

    def _truth(self, kind: Kind, scenario: Scenario, time: Tensor, joints: Tensor) -> GroundTruth:
        traits = people_in(VideoRng(self.seed, kind, self.identities), scenario).traits[:, 0]
        company = scenario.present[:, 1:].any(1, keepdim=True)
        state = scenario.action[:, 0].gather(1, current_segment(scenario, time)[:, :, 0])  # (B, T)
        labels = torch.where(state == STAND, -1, state)
        if kind == "surveillance":
            known = torch.zeros(len(ACTION_POSES), dtype=torch.int64, device=self.device)
            known[[ACTIONS.index(name) for name in ANOMALIES[1:]]] = torch.arange(1, 4, device=self.device)
            labels = known[state]
        attributes = torch.cat([traits, company], dim=1).float()
        return GroundTruth(
            scenario.label, scenario.number[:, 0], attributes, labels, joints, scenario.present
        )


def _state_at(
    scenario: Scenario, persons: People, which: Tensor, time: Tensor
) -> tuple[ActionState, Tensor, Tensor]:
    """The actions of people in F frames, their headings (F, P) and positions (F, P, 2)."""
    scenario = Scenario(*(value[which] for value in scenario))
    at = current_segment(scenario, time[:, None])[:, 0][..., None]  # (F, P, 1)

    def now(value: Tensor) -> Tensor:
        return value.gather(2, at)[..., 0]

    state = ActionState(
        action=now(scenario.action),
        time=time[:, None] - now(scenario.start),
        rest=now(scenario.stop) - time[:, None],
        phase=scenario.phase,
        vigour=scenario.vigour,
        mirror=scenario.mirror,
        stoop=17.0 * persons.trait("senior"),
    )
    before = scenario.heading.gather(2, (at - 1).clamp_min(0))[..., 0]
    heading = before + (now(scenario.heading) - before) * smooth(state.time / 0.5)
    return state, heading, scenario.ground + displacement(scenario, persons, time[:, None, None])


def _shake(rng: VideoRng, index: Tensor, which: Tensor, time: Tensor) -> Tensor:
    """The shake of a hand-held camera: (F, 2), in pixels of 112."""
    u = rng.uniform("shake", index, 13)[which]
    rate = torch.tensor([0.31, 0.9, 2.3], device=time.device, dtype=torch.float64)
    size = torch.tensor([1.4, 0.8, 0.35], device=time.device, dtype=torch.float64)
    cycles = time[:, None, None] * rate * (0.8 + 0.4 * u[:, 6:12].view(-1, 2, 3)) + u[:, :6].view(-1, 2, 3)
    return ((2 * torch.pi * cycles).sin() * size).sum(-1) * (0.3 + 0.9 * u[:, 12:])


def _scene_objects(rng: VideoRng, index: Tensor, scenario: Scenario) -> SceneObjects:
    """The item on the floor and the occluder, independent of the action."""
    u = rng.uniform("stage", index, 9)
    bare = rng.kind in ("gait", "gait-alike", "surveillance")
    turn, ground = scenario.heading[:, 0, 0].deg2rad(), scenario.ground[:, 0]
    return SceneObjects(
        item=torch.where(u[:, 0] < (0.0 if bare else 0.7), (u[:, 1] * 3).long(), -1),
        item_x=ground[:, 0] + 0.47 * turn.sin(),
        item_z=ground[:, 1] + 0.47 * turn.cos(),
        occluder=torch.where(u[:, 2] < 0.3, (u[:, 3] * 2).long(), -1),
        occluder_x=torch.where(u[:, 4] < 0.5, -1.0, 1.0) * (0.26 + 0.2 * u[:, 5]),
        shade=0.25 + 0.6 * u[:, 6:9],
    )


def _item_position(objects: SceneObjects, which: Tensor, state: ActionState, skeleton: Skeleton) -> Tensor:
    """The position of the item (F, 3): it moves with the hand that picks it up."""
    rest = torch.stack([objects.item_x, torch.zeros_like(objects.item_x), objects.item_z], dim=1)[which]
    hands = (skeleton.origin + 1.1 * skeleton.axes[..., 0, :])[:, 0]
    hand = torch.where(state.mirror[:, :1], hands[:, 6], hands[:, 5])
    hand = hand - torch.tensor([0.0, 0.2, 0.0], device=hand.device, dtype=hand.dtype)
    held = smooth((state.time[:, :1] / ACTION_POSES["pick up"].seconds - 0.4) / 0.08)
    return rest + (hand - rest) * held * (state.action[:, :1] == PICK_UP)


def _shadows(skeleton: Skeleton, view: View, present: Tensor) -> Tensor:
    """Soft shadows on the floor, one per person: (F, P, 15)."""
    points = skeleton.origin[..., (0, 2, 3, 4, 11, 12), :]
    x, z = points[..., 0], points[..., 2]
    middle, spread = x.mean(-1), (x.amax(-1) - x.amin(-1)) / 2
    floor = torch.stack([middle, torch.zeros_like(middle), z.mean(-1)], dim=-1)
    sx, sy = view.project(floor[..., None, :])
    height = skeleton.origin[..., 11:, 1].amin(-1)  # of the lower foot
    return make_shapes(
        sx[..., 0] + 0.05 * view.scale,
        sy[..., 0] + 0.01 * view.scale,
        long=(0.1 + 0.75 * spread) * view.scale,
        radius=0.085 * view.scale,
        edge=0.16 * view.scale,
        alpha=0.42 * present * (1 - height.clamp(0, 0.5)),
        light=0.0,
        color=torch.tensor([0.12, 0.1, 0.14], device=x.device, dtype=x.dtype).expand(*sx.shape[:-1], 3),
        depth=-50.0,
    )
