"""The synthetic world itself: makes the frames of any of its videos, and tells what is true of them.

Scripts become skeletons, skeletons shapes, shapes pixels. Angles and places are reckoned in double
precision, so that no batch changes a pixel; only the painting is done a few frames at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Self

import torch
from torch import Tensor

from veil.data.synthetic.motion import ACTIONS, JOINTS, MOVES, STAND, Bones, Doing, bones, pose, smooth
from veil.data.synthetic.people import People, View, body_shapes, build
from veil.data.synthetic.render import (
    develop,
    look_through,
    make_shapes,
    paint,
    to_pictures,
    to_tiles,
    wide_enough,
)
from veil.data.synthetic.scenes import Stage, occluder_shapes, place_pictures, thing_shapes
from veil.data.synthetic.scripts import (
    ANOMALIES,
    FPS,
    IDENTITIES,
    LENGTHS,
    PICK_UP,
    Dice,
    Kind,
    Script,
    cast,
    current,
    take,
    walked,
    write_script,
)

POINTS = (*JOINTS, "hand_r", "hand_l", "toe_r", "toe_l")


class Truth(NamedTuple):
    """What is known of B videos of T frames, of which P people are tracked."""

    action: Tensor  # (B,) index into ACTIONS (surveillance: into ANOMALIES); -1: several
    identity: Tensor  # (B,) the person's number; identities come first, strangers after them
    attributes: Tensor  # (B, ATTRIBUTES) 0 or 1
    labels: Tensor  # (B, T) what happens in each frame, as in `action`; -1 (surveillance: 0): nothing of note
    joints: Tensor  # (B, T, P, POINTS, 2) x and y, in pixels
    there: Tensor  # (B, P) who is in the video at all; the first is the one whom the truth is about


class Crew:
    """Threads that do the parts of a work: one on a GPU; on a CPU as many as torch would use in each step.

    The steps here are short, and torch's own threads would spend them on waiting for one another.
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
        """What the work gives for ``total`` things, a few at once."""
        parts = [slice(begin, begin + at_once) for begin in range(0, total, at_once)]
        if min(self._threads, len(parts)) == 1:
            return torch.cat([work(part) for part in parts])
        with ThreadPoolExecutor(self._threads) as pool:
            return torch.cat(list(pool.map(work, parts)))


class World:
    """A seed, and all that follows from it. Nothing is stored but the grain of the sensor."""

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
        # Windows of one sheet of grain: (97, 97, 3, size, size), of which each frame takes one.
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
    ) -> tuple[Tensor, Truth]:
        """Frames ``(B, T, size, size, 3)`` uint8 from frame ``first`` on, and what is true of them."""
        index = self._index(indices)
        with Crew(self.device) as crew:
            return self._render(crew, index, kind, first, LENGTHS[kind] - first if length is None else length)

    def truth(self, indices: Sequence[int] | Tensor, kind: Kind = "clips") -> Truth:
        """What `render` would tell of whole videos, without their joints: ``(B, T, P, 0, 2)``."""
        script = self.script(indices, kind)
        time = self._times(script, 0, LENGTHS[kind])
        none = torch.zeros(*time.shape, script.number.shape[1], 0, 2, device=self.device)
        return self._truth(kind, script, time, none)

    def script(self, indices: Sequence[int] | Tensor, kind: Kind = "clips") -> Script:
        """What videos will show."""
        return write_script(Dice(self.seed, kind, self.identities), self._index(indices))

    def _index(self, indices: Sequence[int] | Tensor) -> Tensor:
        index = torch.as_tensor(indices, dtype=torch.int64, device=self.device).reshape(-1)
        if not len(index):
            raise ValueError("no video was asked for; give at least one index")
        return index

    def _times(self, script: Script, first: int, length: int) -> Tensor:
        """When each frame is taken: (B, T) seconds."""
        return script.moment[:, None] + (torch.arange(length, device=self.device).double() + first) / self.fps

    def _render(self, crew: Crew, index: Tensor, kind: Kind, first: int, length: int) -> tuple[Tensor, Truth]:
        dice = Dice(self.seed, kind, self.identities)
        script = write_script(dice, index)
        times = self._times(script, first, length)
        which = torch.arange(len(index), device=self.device).repeat_interleave(length)  # (F,)
        time = times.reshape(-1)  # (F,)
        joints, shapes, shift = self._act(dice, index, script, which, time)
        exposure = dice.chance("exposure", index, 4).float()
        gain = (0.93 + 0.12 * exposure[:, :1] + 0.05 * (exposure[:, 1:] - 0.5))[which]  # (F, 3)
        amount = (1.0 + 3.0 * dice.chance("grain", index, 1).float())[which]
        keys = dice.keys(index)
        spot = (97 * dice.chance("spot", index[which] * 4096 + (time * 1000).round().long(), 2)).long()

        def furnish(part: slice) -> Tensor:
            pictures = place_pictures(self.seed, script.place[part], keys[part], self.size)
            return wide_enough(pictures, self.size)

        def shoot(part: slice) -> Tensor:
            tiles = to_tiles(look_through(pictures, which[part], shift[part], self.size))
            paint(tiles, shapes[part])
            grain = self._grain[spot[part, 0], spot[part, 1]].mul_(amount[part, :, None, None])
            return develop(to_pictures(tiles), self._vignette, gain[part], grain, self.size)

        # Few enough at once for a CPU's cache, enough to keep a GPU busy.
        at_once = max(1, int((32 if self.device.type == "cpu" else 8192) * (112 / self.size) ** 2))
        pictures = crew.gather(furnish, len(index), max(1, at_once // 4))
        frames = crew.gather(shoot, len(which), at_once)
        truth = self._truth(kind, script, times, joints.view(*times.shape, *joints.shape[1:]))
        return frames.view(*times.shape, *frames.shape[1:]), truth

    def _act(
        self, dice: Dice, index: Tensor, script: Script, which: Tensor, time: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Where joints are seen (F, P, POINTS, 2), all shapes (F, K, 15), and the camera's way (F, 2)."""
        persons = take(cast(dice, script), which)
        doing, heading, ground = _now(script, persons, which, time)
        far = dice.kind == "surveillance"
        if far:  # who leaves on one side comes back on the other, and all keep to their lanes
            x = (ground[..., 0] + 4).remainder(8.0) - 4
            ground = torch.stack([x, script.ground[which][..., 1]], dim=-1)
        skeleton = bones(pose(doing, persons.gait), build(persons), heading, ground)
        scale, tilt, floor = (self.size / 4.6, 0.3, 0.8) if far else (self.size / 2.34, 0.2, 0.905)
        zoom = 0.98 + 0.04 * dice.chance("zoom", index, 1)[which]
        follow = ground[:, :1] * (0.0 if far else 0.9)  # (F, 1, 2): the camera goes along, but not quite
        shake = _shake(dice, index, which, time) * (self.size / 112)
        shift = shake + follow[:, 0] * torch.tensor([scale, 0.0], device=self.device, dtype=torch.float64)
        view = View(
            scale=scale * zoom * (1 + 0.05 * (ground[..., 1] - follow[..., 1])),
            x=self.size / 2 - shift[:, :1],
            y=floor * self.size - scale * tilt * follow[..., 1] - shake[:, 1:],
            tilt=tilt,
        )
        there, stage = script.there[which], _stage(dice, index, script)
        shapes = [
            body_shapes(persons, script.worn[which], skeleton, view, there).flatten(1, 2),
            _shadows(skeleton, view, there),
            occluder_shapes(stage, which, shake, self.size),
            thing_shapes(stage, which, _thing_at(stage, which, doing, skeleton), view),
        ]
        ends = skeleton.origin + skeleton.axes[..., 0, :]
        points = torch.cat([skeleton.origin, ends[..., 5:7, :], ends[..., 11:13, :]], dim=-2)
        joints = torch.stack(view.see(points), dim=-1)
        return joints.float(), torch.cat(shapes, dim=1).float(), shift.float()

    def _truth(self, kind: Kind, script: Script, time: Tensor, joints: Tensor) -> Truth:
        traits = cast(Dice(self.seed, kind, self.identities), script).traits[:, 0]
        company = script.there[:, 1:].any(1, keepdim=True)
        doing = script.action[:, 0].gather(1, current(script, time)[:, :, 0])  # (B, T)
        labels = torch.where(doing == STAND, -1, doing)
        if kind == "surveillance":
            known = torch.zeros(len(MOVES), dtype=torch.int64, device=self.device)
            known[[ACTIONS.index(name) for name in ANOMALIES[1:]]] = torch.arange(1, 4, device=self.device)
            labels = known[doing]
        attributes = torch.cat([traits, company], dim=1).float()
        return Truth(script.label, script.number[:, 0], attributes, labels, joints, script.there)


def _now(script: Script, persons: People, which: Tensor, time: Tensor) -> tuple[Doing, Tensor, Tensor]:
    """What people do in F frames, where they are headed (F, P) and where they are (F, P, 2)."""
    script = Script(*(value[which] for value in script))
    at = current(script, time[:, None])[:, 0][..., None]  # (F, P, 1)

    def now(value: Tensor) -> Tensor:
        return value.gather(2, at)[..., 0]

    doing = Doing(
        action=now(script.action),
        time=time[:, None] - now(script.start),
        rest=now(script.stop) - time[:, None],
        phase=script.phase,
        vigour=script.vigour,
        mirror=script.mirror,
        stoop=17.0 * persons.trait("senior"),
    )
    before = script.heading.gather(2, (at - 1).clamp_min(0))[..., 0]
    heading = before + (now(script.heading) - before) * smooth(doing.time / 0.5)
    return doing, heading, script.ground + walked(script, persons, time[:, None, None])


def _shake(dice: Dice, index: Tensor, which: Tensor, time: Tensor) -> Tensor:
    """A camera in a hand that is not quite still: (F, 2), in pixels of 112."""
    u = dice.chance("shake", index, 13)[which]
    rate = torch.tensor([0.31, 0.9, 2.3], device=time.device, dtype=torch.float64)
    size = torch.tensor([1.4, 0.8, 0.35], device=time.device, dtype=torch.float64)
    cycles = time[:, None, None] * rate * (0.8 + 0.4 * u[:, 6:12].view(-1, 2, 3)) + u[:, :6].view(-1, 2, 3)
    return ((2 * torch.pi * cycles).sin() * size).sum(-1) * (0.3 + 0.9 * u[:, 12:])


def _stage(dice: Dice, index: Tensor, script: Script) -> Stage:
    """What lies before the first person's feet and what stands in the way, whatever the action."""
    u = dice.chance("stage", index, 9)
    bare = dice.kind in ("gait", "gait-alike", "surveillance")
    turn, ground = script.heading[:, 0, 0].deg2rad(), script.ground[:, 0]
    return Stage(
        thing=torch.where(u[:, 0] < (0.0 if bare else 0.7), (u[:, 1] * 3).long(), -1),
        thing_x=ground[:, 0] + 0.47 * turn.sin(),
        thing_z=ground[:, 1] + 0.47 * turn.cos(),
        occluder=torch.where(u[:, 2] < 0.3, (u[:, 3] * 2).long(), -1),
        occluder_x=torch.where(u[:, 4] < 0.5, -1.0, 1.0) * (0.26 + 0.2 * u[:, 5]),
        shade=0.25 + 0.6 * u[:, 6:9],
    )


def _thing_at(stage: Stage, which: Tensor, doing: Doing, skeleton: Bones) -> Tensor:
    """Where the thing on the floor is (F, 3): it goes along with the hand that picks it up."""
    rest = torch.stack([stage.thing_x, torch.zeros_like(stage.thing_x), stage.thing_z], dim=1)[which]
    hands = (skeleton.origin + 1.1 * skeleton.axes[..., 0, :])[:, 0]
    hand = torch.where(doing.mirror[:, :1], hands[:, 6], hands[:, 5])
    hand = hand - torch.tensor([0.0, 0.2, 0.0], device=hand.device, dtype=hand.dtype)
    held = smooth((doing.time[:, :1] / MOVES["pick up"].seconds - 0.4) / 0.08)
    return rest + (hand - rest) * held * (doing.action[:, :1] == PICK_UP)


def _shadows(skeleton: Bones, view: View, there: Tensor) -> Tensor:
    """Soft shadows on the floor, one a person: (F, P, 15)."""
    points = skeleton.origin[..., (0, 2, 3, 4, 11, 12), :]
    x, z = points[..., 0], points[..., 2]
    middle, spread = x.mean(-1), (x.amax(-1) - x.amin(-1)) / 2
    floor = torch.stack([middle, torch.zeros_like(middle), z.mean(-1)], dim=-1)
    sx, sy = view.see(floor[..., None, :])
    height = skeleton.origin[..., 11:, 1].amin(-1)  # of the lower foot
    return make_shapes(
        sx[..., 0] + 0.05 * view.scale,
        sy[..., 0] + 0.01 * view.scale,
        long=(0.1 + 0.75 * spread) * view.scale,
        radius=0.085 * view.scale,
        edge=0.16 * view.scale,
        alpha=0.42 * there * (1 - height.clamp(0, 0.5)),
        light=0.0,
        color=torch.tensor([0.12, 0.1, 0.14], device=x.device, dtype=x.dtype).expand(*sx.shape[:-1], 3),
        depth=-50.0,
    )
